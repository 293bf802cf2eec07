//! The runtime's programs: those that every node needs, and those of the engines.

use std::path::{Path, PathBuf};

use cwasi_config::Engine;
use cwasi_coordinator::fingerprint::engine_version;

use super::{Checks, State};

/// Programs that every node needs.
const PROGRAMS: [&str; 2] = ["containerd-shim-cwasi-v1", "cwasi-shim"];

/// The programs must be where containerd looks: its PATH may be another one than ours. `engine` is the node's.
pub(super) fn examine(checks: &mut Checks, engine: Engine) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let find = |program: &str| {
        folders.iter().map(|folder| folder.join(program)).find(|file| file.exists())
    };
    let missing = |programs: &[&'static str]| -> Vec<&'static str> {
        programs.iter().copied().filter(|program| find(program).is_none()).collect()
    };
    let needed = [&PROGRAMS[..], &engine.programs()].concat();
    match (find(PROGRAMS[0]), missing(&needed).as_slice()) {
        (Some(launcher), []) => {
            let folder = launcher.parent().unwrap_or(Path::new("/")).display().to_string();
            checks.add(State::Ok, "programs", folder);
        }
        (_, missing) => {
            let missing = missing.join(", ");
            checks.add(
                State::Fault,
                "programs",
                format!("not on PATH: {missing}; make install, into a folder of containerd's PATH"),
            );
        }
    }
    for engine_here in Engine::ALL {
        let (state, found) = of_engine(engine_here, engine, &missing(&engine_here.programs()));
        checks.add(state, "engine", found);
    }
}

/// An engine with its version, and what is missing of it. `default` is the node's engine.
fn of_engine(engine: Engine, default: Engine, missing: &[&str]) -> (State, String) {
    let name = format!("{engine} {}", engine_version(engine));
    let programs = missing.join(", ");
    match (missing.is_empty(), engine == default) {
        (true, true) => (State::Ok, format!("{name}, of functions that name none")),
        (true, false) => (State::Ok, name),
        (false, true) => {
            let found = format!("{name} is not on PATH: {programs}; no function starts without it");
            (State::Fault, found)
        }
        (false, false) => {
            let found = format!(
                "{name} is not on PATH: {programs}; functions with cwasi.engine={engine} do not start"
            );
            (State::Note, found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_engine_than_the_nodes_is_optional() {
        let [one, other] = Engine::ALL;
        for (engine, missing, state, part) in [
            (one, &[][..], State::Ok, "of functions that name none"),
            (other, &[][..], State::Ok, engine_version(other)),
            (one, &["p", "q"][..], State::Fault, "is not on PATH: p, q; no function starts"),
            (other, &["p"][..], State::Note, "do not start"),
        ] {
            let found = of_engine(engine, one, missing);
            assert_eq!(found.0, state, "{}", found.1);
            assert!(found.1.contains(part), "{}", found.1);
        }
    }
}
