//! `--pod-security`: what a Workflow may ask for its pods, by Kubernetes' Pod Security Standards. Pure.
//!
//! Who may create Workflows has the operator make pods: without a level, any that the namespace admits. With one, a
//! Workflow whose `podTemplate` exceeds it is refused, and so is a service account that is not `default`, about which
//! the standards say nothing. What `restricted` demands to be set is left to the namespace's own level.

use std::fmt;

use clap::ValueEnum;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, PodTemplateSpec, SELinuxOptions,
    SeccompProfile, SecurityContext, WindowsSecurityContextOptions,
};

use super::{Plan, PlannedFunction, PlannedService};

/// Capabilities that `baseline` lets a container add.
const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// The one that `restricted` does.
const RESTRICTED_CAPABILITIES: [&str; 1] = ["NET_BIND_SERVICE"];
/// Sysctls that are a pod's own.
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];
/// Types of SELinux labels.
const SELINUX_TYPES: [&str; 5] =
    ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
/// Annotations of AppArmor before its field.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const UNCONFINED: &str = "Unconfined";

/// A level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum PodSecurity {
    /// Everything.
    #[default]
    Privileged,
    /// Nothing with which a pod is known to leave its container.
    Baseline,
    /// As pods are hardened today.
    Restricted,
}

impl fmt::Display for PodSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

impl PodSecurity {
    /// What a plan asks for beyond this level; each fault names its field.
    #[must_use]
    pub fn faults(self, plan: &Plan) -> Vec<String> {
        if self == Self::Privileged {
            return Vec::new();
        }
        let mut found = Vec::new();
        self.template(&plan.template, "spec.podTemplate", &mut found);
        let functions =
            plan.functions.iter().map(|PlannedFunction { function, template, .. }| {
                (format!("spec.functions.{}", function.name), template, function.host_network)
            });
        let services = plan.services.iter().map(|PlannedService { service, template, .. }| {
            (format!("spec.services.{}", service.name), template, service.host_network)
        });
        for (path, template, host_network) in functions.chain(services) {
            self.template(template, &format!("{path}.podTemplate"), &mut found);
            if host_network {
                found.push(format!("{path}.hostNetwork"));
            }
        }
        found.dedup();
        let fault = |field| {
            format!(
                "{field} exceeds the level {self} of Pod Security, the most that this operator admits (--pod-security)"
            )
        };
        found.into_iter().map(fault).collect()
    }

    fn template(self, template: &PodTemplateSpec, path: &str, found: &mut Vec<String>) {
        let annotations = template.metadata.as_ref().and_then(|it| it.annotations.as_ref());
        for (key, value) in annotations.into_iter().flatten() {
            let is_usual = value == "runtime/default" || value.starts_with("localhost/");
            if key.starts_with(APPARMOR) && !is_usual {
                found.push(format!("{path}.metadata.annotations.{key}"));
            }
        }
        if let Some(spec) = &template.spec {
            self.pod(spec, &format!("{path}.spec"), found);
        }
    }

    fn pod(self, spec: &PodSpec, path: &str, found: &mut Vec<String>) {
        let is_other = |name: &Option<String>| {
            name.as_ref().is_some_and(|name| !name.is_empty() && name != "default")
        };
        let mut fault = |is: bool, field: &str| {
            if is {
                found.push(format!("{path}.{field}"));
            }
        };
        fault(spec.host_network == Some(true), "hostNetwork");
        fault(spec.host_pid == Some(true), "hostPID");
        fault(spec.host_ipc == Some(true), "hostIPC");
        fault(is_other(&spec.service_account_name), "serviceAccountName");
        fault(is_other(&spec.service_account), "serviceAccount");
        for volume in spec.volumes.iter().flatten() {
            let is_refused = match self {
                Self::Restricted => !is_restricted_volume(volume),
                Self::Baseline | Self::Privileged => volume.host_path.is_some(),
            };
            fault(is_refused, &format!("volumes.{}", volume.name));
        }
        if let Some(context) = &spec.security_context {
            self.pod_context(context, &format!("{path}.securityContext"), found);
        }
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for container in containers {
            self.container(container, &format!("{path}.containers.{}", container.name), found);
        }
    }

    fn pod_context(self, context: &PodSecurityContext, path: &str, found: &mut Vec<String>) {
        let mut fault = |is: bool, field: &str| {
            if is {
                found.push(format!("{path}.{field}"));
            }
        };
        for sysctl in context.sysctls.iter().flatten() {
            fault(!SYSCTLS.contains(&&*sysctl.name), &format!("sysctls.{}", sysctl.name));
        }
        self.shared(&SharedContext::from(context), &mut fault);
    }

    fn container(self, container: &Container, path: &str, found: &mut Vec<String>) {
        for port in container.ports.iter().flatten() {
            if port.host_port.is_some_and(|port| port != 0) {
                found.push(format!("{path}.ports.hostPort"));
            }
        }
        if let Some(context) = &container.security_context {
            self.container_context(context, &format!("{path}.securityContext"), found);
        }
    }

    fn container_context(self, context: &SecurityContext, path: &str, found: &mut Vec<String>) {
        let mut fault = |is: bool, field: &str| {
            if is {
                found.push(format!("{path}.{field}"));
            }
        };
        fault(context.privileged == Some(true), "privileged");
        let added = context.capabilities.iter().flat_map(|it| it.add.iter().flatten());
        for name in added {
            let is_known = match self {
                Self::Restricted => RESTRICTED_CAPABILITIES.contains(&&**name),
                Self::Baseline | Self::Privileged => BASELINE_CAPABILITIES.contains(&&**name),
            };
            fault(!is_known, &format!("capabilities.add.{name}"));
        }
        let proc_mount = context.proc_mount.as_deref().unwrap_or("Default");
        fault(proc_mount != "Default", "procMount");
        if self == Self::Restricted {
            fault(context.allow_privilege_escalation == Some(true), "allowPrivilegeEscalation");
        }
        self.shared(&SharedContext::from(context), &mut fault);
    }

    /// The fields that a pod and its containers have alike.
    fn shared(self, context: &SharedContext<'_>, fault: &mut impl FnMut(bool, &str)) {
        let SharedContext { seccomp, apparmor, label, windows, .. } = context;
        fault(seccomp.is_some_and(|it| it.type_ == UNCONFINED), "seccompProfile");
        fault(apparmor.is_some_and(|it| it.type_ == UNCONFINED), "appArmorProfile");
        fault(label.is_some_and(is_other_label), "seLinuxOptions");
        fault(windows.is_some_and(|it| it.host_process == Some(true)), "windowsOptions");
        if self == Self::Restricted {
            fault(context.run_as_non_root == Some(false), "runAsNonRoot");
            fault(context.run_as_user == Some(0), "runAsUser");
        }
    }
}

/// What the security contexts of a pod and of a container have alike.
struct SharedContext<'a> {
    seccomp: Option<&'a SeccompProfile>,
    apparmor: Option<&'a AppArmorProfile>,
    label: Option<&'a SELinuxOptions>,
    windows: Option<&'a WindowsSecurityContextOptions>,
    run_as_non_root: Option<bool>,
    run_as_user: Option<i64>,
}

impl<'a> From<&'a PodSecurityContext> for SharedContext<'a> {
    fn from(context: &'a PodSecurityContext) -> Self {
        Self {
            seccomp: context.seccomp_profile.as_ref(),
            apparmor: context.app_armor_profile.as_ref(),
            label: context.se_linux_options.as_ref(),
            windows: context.windows_options.as_ref(),
            run_as_non_root: context.run_as_non_root,
            run_as_user: context.run_as_user,
        }
    }
}

impl<'a> From<&'a SecurityContext> for SharedContext<'a> {
    fn from(context: &'a SecurityContext) -> Self {
        Self {
            seccomp: context.seccomp_profile.as_ref(),
            apparmor: context.app_armor_profile.as_ref(),
            label: context.se_linux_options.as_ref(),
            windows: context.windows_options.as_ref(),
            run_as_non_root: context.run_as_non_root,
            run_as_user: context.run_as_user,
        }
    }
}

fn is_other_label(options: &SELinuxOptions) -> bool {
    let is_set = |it: &Option<String>| it.as_ref().is_some_and(|it| !it.is_empty());
    let label = options.type_.as_deref().unwrap_or_default();
    !SELINUX_TYPES.contains(&label) || is_set(&options.user) || is_set(&options.role)
}

/// True for the kinds of volumes that `restricted` admits.
fn is_restricted_volume(volume: &k8s_openapi::api::core::v1::Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    /// Faults of a template's spec, without the beginning of their paths.
    fn faults(level: PodSecurity, spec: &Value) -> Vec<String> {
        let template: PodTemplateSpec = from_value(json!({ "spec": spec })).unwrap();
        let mut found = Vec::new();
        level.template(&template, "t", &mut found);
        found
    }

    fn of_container(context: &Value) -> Value {
        json!({ "containers": [{ "name": "f", "securityContext": context }] })
    }

    #[test]
    fn baseline_refuses_what_leaves_the_container() {
        for (spec, field) in [
            (json!({ "containers": [], "hostNetwork": true }), "hostNetwork"),
            (json!({ "containers": [], "hostPID": true }), "hostPID"),
            (json!({ "containers": [], "hostIPC": true }), "hostIPC"),
            (json!({ "containers": [], "serviceAccountName": "root" }), "serviceAccountName"),
            (json!({ "containers": [], "serviceAccount": "root" }), "serviceAccount"),
            (
                json!({ "containers": [], "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] }),
                "volumes.v",
            ),
            (
                json!({ "containers": [{ "name": "f", "ports": [{ "containerPort": 1, "hostPort": 1 }] }] }),
                "containers.f.ports.hostPort",
            ),
            (of_container(&json!({ "privileged": true })), "privileged"),
            (
                of_container(&json!({ "capabilities": { "add": ["CHOWN", "SYS_ADMIN"] } })),
                "capabilities.add.SYS_ADMIN",
            ),
            (of_container(&json!({ "procMount": "Unmasked" })), "procMount"),
            (
                of_container(&json!({ "seccompProfile": { "type": "Unconfined" } })),
                "seccompProfile",
            ),
            (of_container(&json!({ "seLinuxOptions": { "type": "spc_t" } })), "seLinuxOptions"),
            (
                json!({ "containers": [], "initContainers": [{ "name": "f", "securityContext": { "privileged": true } }] }),
                "privileged",
            ),
            (
                json!({ "containers": [], "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] } }),
                "sysctls.kernel.msgmax",
            ),
        ] {
            for level in [PodSecurity::Baseline, PodSecurity::Restricted] {
                let found = faults(level, &spec);
                assert!(found.iter().any(|fault| fault.ends_with(field)), "{spec}: {found:?}");
            }
        }
    }

    #[test]
    fn usual_pods_are_admitted_and_restricted_refuses_more() {
        let usual = json!({
            "serviceAccountName": "default",
            "volumes": [{ "name": "v", "secret": { "secretName": "s" } }],
            "containers": [{ "name": "f", "securityContext": {
                "runAsUser": 1000, "allowPrivilegeEscalation": false,
                "capabilities": { "add": ["NET_BIND_SERVICE"], "drop": ["ALL"] },
                "seccompProfile": { "type": "RuntimeDefault" },
            } }],
        });
        assert_eq!(faults(PodSecurity::Restricted, &usual), Vec::<String>::new());
        for spec in [
            of_container(&json!({ "allowPrivilegeEscalation": true })),
            of_container(&json!({ "runAsUser": 0 })),
            of_container(&json!({ "capabilities": { "add": ["CHOWN"] } })),
            json!({ "containers": [], "volumes": [{ "name": "v", "nfs": { "server": "s", "path": "/" } }] }),
        ] {
            assert_eq!(faults(PodSecurity::Baseline, &spec), Vec::<String>::new(), "{spec}");
            assert_eq!(faults(PodSecurity::Restricted, &spec).len(), 1, "{spec}");
        }
    }
}
