//! Descriptors on their way between processes, which the kernel counts for each user: unread answers hold them, beside
//! another tenant whose functions have the same user.

use super::late_caller::LateCaller;
use super::neighbour::Neighbour;
use crate::scene;

/// Callers that read no answers. Theirs are more descriptors than containerd's default limit, 1,024.
const CALLERS: usize = 12;
const CALLS: usize = 200;
/// Bytes of an answer, which no frame holds.
const SIZE: usize = 100_000;

#[test]
fn unread_answers_leave_descriptors_to_others() {
    let scene = scene("fair-descriptors");
    let neighbour = Neighbour::beside(&scene);
    let run = scene.guest("server", "server").annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", "server").annotation("cwasi.queue", "4096"));
    let start = |number| LateCaller::start(&scene, &format!("late-{number}"), CALLS, SIZE);
    let callers: Vec<_> = (0..CALLERS).map(start).collect();
    callers.iter().for_each(LateCaller::wait);
    neighbour.large_calls(100);
    neighbour.calls(10);
    scene.remove_containers();
}
