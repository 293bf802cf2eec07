//! What libcontainer's systemd manager leaves undone for a container whose cgroup is a scope.
//!
//! - It hands limits to systemd, which puts them in force when it comes round to it. So they are written into the
//!   scope's files too, as runc does, before the workload starts; and with them those that it does not pass on (huge
//!   pages).
//! - systemd refuses its list of processors (`AllowedCPUs` as numbers instead of bytes). So libcontainer gets none.
//! - An update of other processor limits without a quota takes the quota away. So the present one is said again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use libcgroups::common::{
    AnyCgroupManager, CgroupConfig, CgroupManager, ControllerOpt, DEFAULT_CGROUP_ROOT,
    create_cgroup_manager,
};
use libcontainer::oci_spec::runtime::LinuxResources;
use nix::unistd::Pid;

use super::BuilderError;
use super::causes::CgroupCause;

#[derive(Debug)]
pub struct Scope<'a> {
    id: &'a str,
    /// Below the hierarchy's root.
    path: PathBuf,
}

impl<'a> Scope<'a> {
    /// Where process `init` of container `id` is.
    ///
    /// # Errors
    /// When it has ended.
    pub fn of(id: &'a str, init: Pid) -> Result<Self, BuilderError> {
        let membership = PathBuf::from(format!("/proc/{init}/cgroup"));
        let text = fs::read_to_string(&membership).and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("0::").map(PathBuf::from))
                .ok_or_else(|| io::ErrorKind::NotFound.into())
        });
        let id_of = id.to_owned();
        let path = text.map_err(|source: io::Error| BuilderError::Cgroup {
            id: id_of,
            path: membership,
            source: Box::new(source.into()),
        })?;
        Ok(Self { id, path })
    }

    /// Its path below the hierarchy's root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes limits into its files.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn apply(&self, resources: &LinuxResources) -> Result<(), BuilderError> {
        let options = ControllerOpt {
            resources,
            disable_oom_killer: false,
            oom_score_adj: None,
            freezer_state: None,
        };
        let cgroup_path = self.path.clone();
        let config =
            CgroupConfig { cgroup_path, systemd_cgroup: false, container_name: String::new() };
        let failed = |source: CgroupCause| BuilderError::Cgroup {
            id: self.id.to_owned(),
            path: self.path.clone(),
            source: Box::new(source),
        };
        let files: AnyCgroupManager =
            create_cgroup_manager(config).map_err(|source| failed(source.into()))?;
        files.apply(&options).map_err(|source| failed(source.into()))
    }

    /// `resources` with the quota that holds now, when they change other limits of the processor and name none.
    #[must_use]
    pub fn with_quota(&self, mut resources: LinuxResources) -> LinuxResources {
        let below = self.path.strip_prefix("/").unwrap_or(&self.path);
        let file = Path::new(DEFAULT_CGROUP_ROOT).join(below).join("cpu.max");
        // Without the controller there is no quota.
        let now = fs::read_to_string(file).unwrap_or_default();
        complete_quota(&mut resources, &now);
        resources
    }
}

/// `now` is the content of `cpu.max`: a quota or "max", and a period.
fn complete_quota(resources: &mut LinuxResources, now: &str) {
    let Some(mut cpu) = resources.cpu().clone() else { return };
    let Some((quota, period)) = now.trim().split_once(' ') else { return };
    if cpu.quota().is_none()
        && let (Ok(quota), Ok(period)) = (quota.parse(), period.parse())
    {
        cpu.set_quota(Some(quota)).set_period(Some(period));
        resources.set_cpu(Some(cpu));
    }
}

/// `resources` without what systemd refuses.
#[must_use]
pub fn for_systemd(mut resources: LinuxResources) -> LinuxResources {
    if let Some(mut cpu) = resources.cpu().clone() {
        cpu.set_cpus(None).set_mems(None);
        resources.set_cpu(Some(cpu));
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(json: &str) -> LinuxResources {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_quota_is_kept_by_an_update_that_names_none() {
        let mut shares = resources(r#"{"cpu":{"shares":512}}"#);
        complete_quota(&mut shares, "20000 100000\n");
        assert_eq!(shares, resources(r#"{"cpu":{"shares":512,"quota":20000,"period":100000}}"#));
        for (given, now) in [
            (r#"{"cpu":{"shares":512}}"#, "max 100000\n"),
            (r#"{"cpu":{"quota":-1}}"#, "20000 100000\n"),
            (r#"{"memory":{"limit":1}}"#, "20000 100000\n"),
            (r#"{"cpu":{"shares":512}}"#, ""),
        ] {
            let mut changed = resources(given);
            complete_quota(&mut changed, now);
            assert_eq!(changed, resources(given), "{now}");
        }
    }

    #[test]
    fn systemd_gets_no_list_of_processors() {
        let given = resources(r#"{"cpu":{"cpus":"0-1","mems":"0","shares":2}}"#);
        assert_eq!(for_systemd(given), resources(r#"{"cpu":{"shares":2}}"#));
    }
}
