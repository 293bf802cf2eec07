//! containerd: its version, its snapshotter, and what its configuration says about the runtime for pods.

use std::path::Path;

use cwasi_config::regular_file;

use super::{Checks, State};
use crate::arguments::Global;
use crate::containerd::{Containerd, ContainerdError, RUNTIME};

/// Names of the CRI plugin's runtime part: containerd 1.x and 2.x.
const CRI_PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// What has to be passed on to containers of a pod.
const POD_ANNOTATIONS: &str = "cwasi.*";

pub(super) async fn examine(checks: &mut Checks, global: &Global, config: &Path) {
    match daemon(global).await {
        Ok((version, None)) => {
            checks.add(
                State::Ok,
                "containerd",
                format!("{version} at {}", global.address.display()),
            );
            checks.add(State::Ok, "snapshotter", global.snapshotter.clone());
        }
        Ok((version, Some(problem))) => {
            checks.add(
                State::Ok,
                "containerd",
                format!("{version} at {}", global.address.display()),
            );
            let found = format!(
                "{}: {problem}; name another one with --snapshotter, see ctr plugins ls",
                global.snapshotter
            );
            checks.add(State::Fault, "snapshotter", found);
        }
        Err(error) => checks.add(State::Fault, "containerd", error.to_string()),
    }
    pods(checks, config);
}

/// Version, and what is wrong with the snapshotter.
async fn daemon(global: &Global) -> Result<(String, Option<String>), ContainerdError> {
    let containerd =
        Containerd::connect(&global.address, &global.namespace, &global.snapshotter).await?;
    Ok((containerd.version().await?, containerd.snapshotter_problem().await?))
}

/// The runtime for pods is in the configuration's file only; containerd's API does not report it.
fn pods(checks: &mut Checks, config: &Path) {
    const WHAT: &str = "pods";
    let shown = config.display();
    let add = format!("docs/operating.md has the lines to add to {shown}; then restart containerd");
    let Ok(text) = regular_file::read_to_string(config) else {
        let found = format!(
            "none, {shown} cannot be read: pods can use the runtime only if the file names it (docs/operating.md); \
             --containerd-config names another file"
        );
        return checks.add(State::Ok, WHAT, found);
    };
    let document: toml::Table = match text.parse() {
        Ok(document) => document,
        Err(error) => {
            let error = error.message();
            return checks.add(State::Fault, WHAT, format!("{shown} is no TOML: {error}"));
        }
    };
    match handler(&document) {
        None => checks.add(State::Ok, WHAT, format!("no runtime {RUNTIME} for pods; {add}")),
        Some((name, false)) => {
            let found = format!(
                "runtime {name} has no pod_annotations = [\"{POD_ANNOTATIONS}\"], so annotations of pods have no \
                 effect; {add}"
            );
            checks.add(State::Fault, WHAT, found);
        }
        Some((name, true)) => checks.add(State::Ok, WHAT, format!("runtime {name} in {shown}")),
    }
}

/// The handler of this runtime, and whether it passes annotations on.
fn handler(document: &toml::Table) -> Option<(String, bool)> {
    let plugins = document.get("plugins")?.as_table()?;
    let cri = CRI_PLUGINS.iter().find_map(|name| plugins.get(*name)?.as_table())?;
    let runtimes = cri.get("containerd")?.get("runtimes")?.as_table()?;
    let (name, runtime) = runtimes
        .iter()
        .find(|(_, it)| it.get("runtime_type").and_then(toml::Value::as_str) == Some(RUNTIME))?;
    let passed = runtime.get("pod_annotations").and_then(toml::Value::as_array);
    let passes = passed.is_some_and(|all| {
        all.iter().filter_map(toml::Value::as_str).any(|it| [POD_ANNOTATIONS, "*"].contains(&it))
    });
    Some((name.clone(), passes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_is_found_in_the_configuration_of_both_generations() {
        for plugin in CRI_PLUGINS {
            for (annotations, passes) in [
                ("", false),
                ("pod_annotations = [\"a\"]", false),
                ("pod_annotations = [\"cwasi.*\"]", true),
            ] {
                let text = format!(
                    "version = 2\n[plugins.\"{plugin}\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
                     [plugins.\"{plugin}\".containerd.runtimes.wasm]\nruntime_type = \"{RUNTIME}\"\n{annotations}\n"
                );
                let document = text.parse().unwrap();
                assert_eq!(handler(&document), Some(("wasm".to_owned(), passes)), "{text}");
            }
        }
        assert_eq!(handler(&"version = 2".parse().unwrap()), None);
    }
}
