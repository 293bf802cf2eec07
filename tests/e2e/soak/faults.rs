//! The faults: which process is killed or paused next, by a seeded random schedule, and what an operator does then.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cwasi_config::DEFAULT_ENGINE;
use cwasi_testbed::processes::{self, Process};
use cwasi_testbed::scene::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fixture::{CALLEES, Fixture, Task};

/// Between two faults, at most, in milliseconds.
const PAUSE_MAX_MS: u64 = 400;
/// Of a hundred faults of a task, how many are a caller's.
const CALLERS_SHARE: u64 = 20;

/// Splitmix64.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(usize::try_from(self.below(all.len() as u64)).ok()?)
    }
}

/// Kills and pauses, one at a time, and counts them by kind.
pub struct Faults<'a> {
    fixture: &'a Fixture,
    random: Random,
    counts: BTreeMap<&'static str, u32>,
}

impl<'a> Faults<'a> {
    pub const fn new(fixture: &'a Fixture, random: Random) -> Self {
        Self { fixture, random, counts: BTreeMap::new() }
    }

    pub const fn counts(&self) -> &BTreeMap<&'static str, u32> {
        &self.counts
    }

    /// Waits a moment, kills something, and restarts what its owner must restart.
    pub fn step(&mut self) {
        std::thread::sleep(Duration::from_millis(self.random.below(PAUSE_MAX_MS)));
        let kind = self.random.below(100);
        if kind < 8 {
            self.fixture.scene.containerd.restart().unwrap_or_else(|error| panic!("{error:#}"));
            *self.counts.entry("containerd").or_default() += 1;
            return;
        }
        let tasks: Vec<Task> =
            self.fixture.tasks().into_iter().filter(|task| task.is_running).collect();
        let wants_caller = self.random.below(100) < CALLERS_SHARE;
        let is_callee = |task: &Task| CALLEES.iter().any(|callee| callee.id == task.id);
        let (callees, callers): (Vec<Task>, Vec<Task>) = tasks.iter().cloned().partition(is_callee);
        let group = if wants_caller { &callers } else { &callees };
        let Some(task) = self.random.pick(group).cloned() else { return };
        match kind {
            8..16 => self.pause(&task),
            16..55 => self.kill_worker(&task),
            55..75 => self.kill_init(&task),
            75..85 => self.kill_zygote(&task, &tasks),
            _ => self.kill_shim(&task, &tasks),
        }
    }

    /// A pause is no fault that a caller may see: its calls go on afterwards.
    fn pause(&mut self, task: &Task) {
        let scene = &self.fixture.scene;
        // It may have ended in this moment.
        if scene.ctr(["task", "pause", &task.id]).code != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(self.random.below(PAUSE_MAX_MS)));
        let resumed = scene.ctr(["task", "resume", &task.id]);
        let ended = !self.fixture.tasks().iter().any(|one| one.pid == task.pid && one.is_running);
        assert!(resumed.code == 0 || ended, "{}: {}", task.id, resumed.stderr);
        *self.counts.entry("pause").or_default() += 1;
    }

    fn kill_worker(&mut self, task: &Task) {
        let workers: Vec<i32> = children(task.pid).iter().map(|process| process.pid).collect();
        if let Some(worker) = self.random.pick(&workers).copied() {
            self.fixture.note_killed(&task.id);
            self.kill("worker", worker);
        }
    }

    fn kill_init(&mut self, task: &Task) {
        self.fixture.note_killed(&task.id);
        self.kill("init", task.pid);
        self.restart(std::slice::from_ref(task));
    }

    /// The zygote of the task's shim: sandboxes do not need it, the shim starts another.
    fn kill_zygote(&mut self, task: &Task, tasks: &[Task]) {
        let Some(shim) = processes::read(task.pid).map(|init| init.parent) else { return };
        let zygote = format!("{} zygote", DEFAULT_ENGINE.sandbox_program());
        let is_zygote = |process: &&Process| {
            process.command.contains(&zygote) && !tasks.iter().any(|task| task.pid == process.pid)
        };
        // A task that has come since looks like a zygote: only the one that descends from nobody's create is.
        if let Some(zygote) = children(shim).iter().filter(is_zygote).min_by_key(|one| one.started)
        {
            self.kill("zygote", zygote.pid);
        }
    }

    /// The task's shim, and with it every task that it has.
    fn kill_shim(&mut self, task: &Task, tasks: &[Task]) {
        let shim_of = |task: &Task| processes::read(task.pid).map(|init| init.parent);
        let Some(shim) = shim_of(task) else { return };
        let hit: Vec<Task> =
            tasks.iter().filter(|task| shim_of(task) == Some(shim)).cloned().collect();
        self.fixture.shim_kills().fetch_add(1, Ordering::SeqCst);
        for task in &hit {
            self.fixture.note_killed(&task.id);
        }
        self.kill("shim", shim);
        self.restart(&hit);
    }

    fn kill(&mut self, kind: &'static str, pid: i32) {
        // Gone in between: no fault.
        if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
            *self.counts.entry(kind).or_default() += 1;
        }
    }

    /// As an operator would: waits until containerd sees that these are gone, deletes the callees and runs them again.
    /// Callers are their lane's.
    fn restart(&self, killed: &[Task]) {
        wait_for("containerd to see what was killed", || {
            let tasks = self.fixture.tasks();
            let runs =
                |gone: &Task| tasks.iter().any(|task| task.pid == gone.pid && task.is_running);
            (!killed.iter().any(runs)).then_some(())
        });
        for callee in CALLEES.iter().filter(|callee| killed.iter().any(|task| task.id == callee.id))
        {
            self.fixture.run_again(callee);
        }
    }
}

fn children(parent: i32) -> Vec<Process> {
    processes::all().into_values().filter(|process| process.parent == parent).collect()
}
