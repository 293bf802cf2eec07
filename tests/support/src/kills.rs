//! Interrupts starts of containers at swept moments, and checks that nothing remains.
//!
//! A count gives the number of moments per start: few in the tests, many in a soak. `CWASI_TEST_SEED` shifts the moments:
//! they are the same in each run without it.

use std::path::Path;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::Running;
use crate::scene::{Scene, wait_for};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The shim daemon of the container.
    Shim,
    /// The client that asked containerd for it.
    Client,
}

/// Name prefix of the directories on which containerd's client mounts an image temporarily.
const CLIENT_MOUNT: &str = "containerd-mount";

/// Latest interruption of a start, after its begin. On a quiet machine a start takes a third of that.
const SPAN: Duration = Duration::from_millis(300);

/// Starts `count` containers one after the other, and kills `victim` a little later in each start than in the one
/// before. Each container is then removed as its user would.
///
/// # Panics
/// When something is left of a container that is removed.
pub fn interrupt_starts(scene: &Scene, victim: Victim, count: u32) {
    let phase = phase();
    for round in 0..count {
        let moment = SPAN * (100 * round + phase) / (100 * count);
        let id = format!("{victim:?}-{round}").to_lowercase();
        let run = scene.guest(&id, "server").annotation("cwasi.role", "secondary");
        let starting = Running::start(run.command(&scene.containerd, true), None)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let victims = victims(scene, victim, &starting, &id);
        std::thread::sleep(moment);
        for pid in victims {
            // It may have ended by itself.
            let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _interrupted = starting.finish().unwrap_or_else(|error| panic!("{error:#}"));
        discard(scene, &id);
        if victim == Victim::Client {
            discard_client_mounts(&scene.node.temporary());
        }
        // What a killed launcher made goes with the next daemon.
        let left = scene.leftovers_but(|line| line.contains("/cwasi/g/"));
        assert!(left.is_empty(), "{id}, {moment:?}: left behind:\n  {}", left.join("\n  "));
        let next = format!("{id}-next");
        scene.secondary(&next, "server");
        scene.remove(&next);
        let left = scene.leftovers();
        assert!(left.is_empty(), "{id}, {moment:?}: left behind:\n  {}", left.join("\n  "));
    }
}

/// How far the moments are shifted, in hundredths of the time between two.
fn phase() -> u32 {
    let seed = std::env::var("CWASI_TEST_SEED").unwrap_or_else(|_| "30".to_owned());
    seed.parse::<u32>().expect("CWASI_TEST_SEED is a number") % 100
}

/// The processes to be killed, once they exist.
fn victims(scene: &Scene, victim: Victim, starting: &Running, id: &str) -> Vec<i32> {
    match victim {
        Victim::Client => vec![i32::try_from(starting.pid()).expect("process ids are below 2^22")],
        Victim::Shim => wait_for(&format!("the shim of {id}"), || {
            let mut all = scene.processes();
            all.retain(|one| one.command.contains("cwasi-shim -") && one.state != 'Z');
            (!all.is_empty()).then(|| all.iter().map(|one| one.pid).collect())
        }),
    }
}

/// Removes the existing parts of a container: `ctr` fails for missing ones.
fn discard(scene: &Scene, id: &str) {
    let _no_task = scene.ctr(["task", "rm", "--force", id]);
    let _no_container = scene.ctr(["container", "rm", id]);
    scene.node.remove_fifos();
}

/// Removes the directories in `temporary` on which a killed client had mounted the image, to read its `/etc/passwd`: a
/// client cleans up only when it ends by itself, with any runtime. containerd's own lie in its root directory.
fn discard_client_mounts(temporary: &Path) {
    let entries = std::fs::read_dir(temporary).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(CLIENT_MOUNT))
    }) {
        // Killed before it mounted, or after it unmounted.
        let _not_mounted = umount2(&entry.path(), MntFlags::MNT_DETACH);
        // The leak check reports what stays.
        let _stays = std::fs::remove_dir(entry.path());
    }
}
