//! Who makes a container's cgroups, and what the OCI specification's `cgroupsPath` means to each.
//!
//! Runs in the launcher, which reads the settings, and in the daemon, which finds a container's cgroup by them.
//! containerd writes `slice:prefix:name` for the systemd driver and a plain path for cgroupfs. What one driver takes
//! for a path of the other's would put the container outside of its pod, where no limit of the pod holds, so it is an
//! error.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// runc's option for the driver, as containerd's configuration spells it.
pub const SYSTEMD_CGROUP: &str = "SystemdCgroup";
/// runc's option for the shim's own cgroup.
pub const SHIM_CGROUP: &str = "ShimCgroup";
/// How the name of a slice ends.
const SLICE: &str = ".slice";
/// What begins the name of a scope when the specification names none, as libcontainer has it.
const DEFAULT_PREFIX: &str = "youki";
/// The slice of such a scope.
const DEFAULT_SLICE: &str = "system.slice";

/// Who makes a container's cgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// The runtime, in the cgroup file system.
    #[default]
    Cgroupfs,
    /// systemd, as a scope.
    Systemd,
}

/// What runc's options say; they count more than the node's configuration, and do not replace the rest of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuncOptions {
    pub systemd_cgroup: Option<bool>,
    pub shim_cgroup: Option<String>,
}

/// A `cgroupsPath` that the driver cannot use.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CgroupsPathError {
    #[error(
        "cgroupsPath {path} is for the systemd cgroup driver, and this runtime is set to cgroupfs: set {SYSTEMD_CGROUP} = \
         true in the runtime's options in containerd's configuration, or cgroup_driver = \"systemd\" in the node's"
    )]
    ForSystemd {
        /// What was asked for.
        path: String,
    },
    /// It is one for cgroupfs.
    #[error(
        "cgroupsPath {path} is not of the form slice:prefix:name, and this runtime is set to the systemd cgroup driver: set \
         {SYSTEMD_CGROUP} = false in the runtime's options in containerd's configuration, or cgroup_driver = \"cgroupfs\" \
         in the node's"
    )]
    ForCgroupfs {
        /// What was asked for.
        path: String,
    },
    /// The slice has an impossible name.
    #[error(
        "cgroupsPath {path} names the slice {slice}, which is no name of a slice such as kubepods-burstable.slice"
    )]
    Slice {
        /// What was asked for.
        path: String,
        /// Its first part.
        slice: String,
    },
}

impl CgroupDriver {
    /// The container's cgroup below the root of each hierarchy; `key` names one that asks for nothing.
    ///
    /// # Errors
    /// When `asked` is for the other driver.
    pub fn locate(self, asked: Option<&Path>, key: &str) -> Result<PathBuf, CgroupsPathError> {
        let default = format!(":{DEFAULT_PREFIX}:{key}");
        let asked = asked.map_or(Cow::Borrowed(default.as_str()), Path::to_string_lossy);
        let parts: Vec<&str> = asked.split(':').collect();
        let path = || asked.clone().into_owned();
        match (self, parts.as_slice()) {
            (Self::Cgroupfs, [slice, _, _]) if slice.ends_with(SLICE) && !slice.contains('/') => {
                Err(CgroupsPathError::ForSystemd { path: path() })
            }
            (Self::Cgroupfs, _) => Ok(PathBuf::from(asked.as_ref())),
            (Self::Systemd, [slice, prefix, name]) if !asked.contains('/') && !name.is_empty() => {
                let slice = if slice.is_empty() { DEFAULT_SLICE } else { slice };
                let directory = expand(slice).ok_or_else(|| CgroupsPathError::Slice {
                    path: path(),
                    slice: slice.to_owned(),
                })?;
                Ok(directory.join(unit(prefix, name)))
            }
            (Self::Systemd, _) => Err(CgroupsPathError::ForCgroupfs { path: path() }),
        }
    }
}

/// Name of the unit; one that is a slice itself keeps its name.
fn unit(prefix: &str, name: &str) -> String {
    if name.ends_with(SLICE) { name.to_owned() } else { format!("{prefix}-{name}.scope") }
}

/// `/a.slice/a-b.slice` for `a-b.slice`: a slice lies in the one that its name begins with.
fn expand(slice: &str) -> Option<PathBuf> {
    let name = slice.strip_suffix(SLICE)?;
    let mut path = PathBuf::from("/");
    if name == "-" {
        return Some(path);
    }
    let mut so_far = String::new();
    for part in name.split('-') {
        if part.is_empty() {
            return None;
        }
        so_far.push_str(part);
        path.push(format!("{so_far}{SLICE}"));
        so_far.push('-');
    }
    Some(path)
}

impl RuncOptions {
    /// Takes runc's options out of a TOML document; returns what is left of it, `None` when that is nothing.
    ///
    /// containerd passes the options that it does not know itself on as such a document. One that cannot be read stays
    /// as it is: its parser says why.
    pub(super) fn take_from(body: &str) -> Result<(Self, Option<String>), String> {
        let Ok(mut table) = toml::from_str::<toml::Table>(body) else {
            return Ok((Self::default(), Some(body.to_owned())));
        };
        let (driver, shim) = (table.remove(SYSTEMD_CGROUP), table.remove(SHIM_CGROUP));
        if driver.is_none() && shim.is_none() {
            let rest = (!table.is_empty()).then(|| body.to_owned());
            return Ok((Self::default(), rest));
        }
        let systemd_cgroup = driver
            .map(|value| value.as_bool().ok_or(format!("{SYSTEMD_CGROUP} must be true or false")))
            .transpose()?;
        let shim_cgroup = shim
            .map(|value| match value {
                toml::Value::String(path) => Ok(path),
                _ => Err(format!("{SHIM_CGROUP} must be the path of a cgroup, in quotes")),
            })
            .transpose()?;
        Ok((Self { systemd_cgroup, shim_cgroup }, (!table.is_empty()).then(|| table.to_string())))
    }
}

/// What is wrong with a cgroup that the shim is to run in.
pub(super) fn check_shim_cgroup(path: &str) -> Result<(), String> {
    let relative = path.strip_prefix('/').unwrap_or(path);
    let is_plain =
        Path::new(relative).components().all(|part| matches!(part, Component::Normal(_)));
    if is_plain && !path.contains(':') {
        return Ok(());
    }
    Err(format!(
        "{SHIM_CGROUP} (shim_cgroup) = {path:?} must be a path below the roots of the cgroup hierarchies, such as \
         \"/cwasi.slice\", or empty"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(driver: CgroupDriver, path: &str) -> Result<PathBuf, CgroupsPathError> {
        driver.locate(Some(Path::new(path)), "k")
    }

    #[test]
    fn a_scope_lies_below_its_slices() {
        let path = locate(CgroupDriver::Systemd, "kubepods-burstable-podx.slice:cri-containerd:c1");
        let expected = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/cri-containerd-c1.scope";
        assert_eq!(path.unwrap(), Path::new(expected));
        let path = locate(CgroupDriver::Systemd, ":docker:c1").unwrap();
        assert_eq!(path, Path::new("/system.slice/docker-c1.scope"));
        let path = locate(CgroupDriver::Systemd, "-.slice:a:b").unwrap();
        assert_eq!(path, Path::new("/a-b.scope"));
        assert_eq!(
            CgroupDriver::Systemd.locate(None, "k").unwrap(),
            Path::new("/system.slice/youki-k.scope")
        );
    }

    #[test]
    fn cgroupfs_takes_paths_as_they_are() {
        assert_eq!(locate(CgroupDriver::Cgroupfs, "/default/a").unwrap(), Path::new("/default/a"));
        let odd = "/k8s.io/x.slice:a:b";
        assert_eq!(locate(CgroupDriver::Cgroupfs, odd).unwrap(), Path::new(odd));
        let default = CgroupDriver::Cgroupfs.locate(None, "k").unwrap();
        assert_eq!(default, Path::new(":youki:k"));
    }

    #[test]
    fn a_path_of_the_other_driver_is_refused() {
        let slice = "kubepods-podx.slice:cri-containerd:c1";
        let error = locate(CgroupDriver::Cgroupfs, slice).unwrap_err().to_string();
        assert!(error.contains("SystemdCgroup = true") && error.contains(slice), "{error}");
        for plain in ["/default/a", "a", "", "a:b", "/x.slice:a:b", "x.slice:a:"] {
            let error = locate(CgroupDriver::Systemd, plain).unwrap_err().to_string();
            assert!(error.contains("SystemdCgroup = false"), "{plain}: {error}");
        }
        for slice in ["x.service:a:b", "a--b.slice:a:b", "-a.slice:a:b", ".slice:a:b"] {
            let error = locate(CgroupDriver::Systemd, slice).unwrap_err();
            assert!(matches!(error, CgroupsPathError::Slice { .. }), "{slice}: {error}");
        }
    }
}
