//! The test bed itself: scenes that run at the same time do not see one another.

use cwasi_testbed::scene::Scene;

use crate::SHIM;

#[test]
fn a_scene_does_not_see_another_ones_containers() {
    let (one, other) = (Scene::new(SHIM, "scene-one"), Scene::new(SHIM, "scene-other"));
    one.secondary("server", "server");
    let init = one.pid("server");
    let processes = one.processes();
    assert!(processes.iter().any(|process| process.pid == init), "{init} in {processes:?}");
    for program in ["cwasi-shim", "zygote"] {
        assert!(processes.iter().any(|process| process.command.contains(program)), "{program}");
    }
    assert_eq!(other.processes(), []);
    assert_eq!(other.leftovers(), Vec::<String>::new());
}
