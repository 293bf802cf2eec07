//! End to end on real containerds. Each file is a part of what users see; `cargo test --test e2e -- calls::` runs one.
//!
//! Its tests run at the same time and share a containerd of each version ([`cwasi_testbed::scene`]). Each test has a
//! containerd namespace and a node's folder of its own. So a test asks for processes by `scene.processes()`, names
//! what belongs to the machine by `unique`, and has a containerd of its own if it stops or damages one.

mod calls;
mod cgroups;
mod compile;
mod component_languages;
mod components;
mod cri;
mod direct;
mod embedding;
mod engines;
mod exceptions;
mod exec;
mod fairness;
mod fan;
mod fan_in;
mod faults;
mod files;
mod functions;
mod groups;
mod host_calls;
mod http_port;
mod interrupted;
mod languages;
mod layers;
mod log;
mod network;
mod nodes;
mod openwhisk;
mod pauses;
mod prototype;
mod regions;
mod restarts;
mod run;
mod scenes;
mod soak;
mod traces;
mod triggers;
mod versions;

use cwasi_testbed::scene::Scene;

/// The runtime's program.
const SHIM: &str = env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1");

/// A scene on containerd 1.6, whose namespace begins with `name`.
fn scene(name: &str) -> Scene {
    Scene::new(SHIM, name)
}
