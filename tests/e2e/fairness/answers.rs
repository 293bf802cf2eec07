//! Memory of answers that nobody reads, beside another caller of the same function and another tenant.

use super::late_caller::LateCaller;
use super::neighbour::Neighbour;
use crate::scene;

/// Answers of a caller that reads none: four times what the function's container may hold.
const CALLS: usize = 1_000;
const SIZE: usize = 1_000_000;
/// Memory of the function's container.
const MEMORY: u64 = 256 << 20;

#[test]
fn unread_answers_take_a_part_of_their_functions_memory() {
    let scene = scene("fair-answers");
    let neighbour = Neighbour::beside(&scene);
    let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    let run = run.annotation("cwasi.function", "server").annotation("cwasi.queue", "4096");
    scene.start(run.flag("--memory-limit").flag(MEMORY.to_string()));
    let pid = scene.pid("server");
    let late = LateCaller::start(&scene, "late", CALLS, SIZE);
    late.wait();
    let other = scene.guest("other", "caller").args(["server", "100", "200000", "echo"]);
    let other = scene.run(other).success();
    assert_eq!(other.text(), "100 calls with 200000 bytes: as expected\n");
    neighbour.large_calls(50);
    neighbour.calls(10);
    // The function was not killed for want of memory.
    assert_eq!((scene.status("server").as_deref(), scene.pid("server")), (Some("RUNNING"), pid));
    scene.remove_containers();
}
