//! What a function's workers do, read from init's board in its memory: no clock says it, and no wait channel.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cwasi::sandbox::board::{Phase, Seen};
use cwasi::sys::mapping::page_len;

use crate::bed::eventually;
use crate::function::Function;

impl Function<'_> {
    /// What each worker does, in the order of their slots.
    pub fn board(&self) -> Vec<Seen> {
        let pid = self.container.pid;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        // The only shared memory of init that is no file: the common page, and one for each slot.
        let shared = maps.lines().filter(|line| line.ends_with("/dev/zero (deleted)"));
        let pages = shared.flat_map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            (start..end).step_by(page_len().unwrap())
        });
        let word = |page: u64| {
            let mut word = [0; 8];
            memory.read_exact_at(&mut word, page).unwrap();
            Seen::of(u64::from_le_bytes(word))
        };
        pages.skip(1).map(word).collect()
    }

    /// Waits until as many workers wait for a request.
    pub fn until_idle(&self, workers: usize) {
        self.until("workers that wait", workers, &[Phase::Idle, Phase::Parked]);
    }

    /// Waits until as many workers run a request, and have all of it.
    pub fn until_busy(&self, workers: usize) {
        self.until("busy workers", workers, &[Phase::Running, Phase::Assigned]);
        // The board says "assigned" before init has sent the request, or the last part of it; then init sleeps.
        eventually("init to sleep", || (self.container.status("State:") == "S").then_some(()));
    }

    fn until(&self, what: &str, workers: usize, phases: &[Phase]) {
        eventually(what, || {
            let board = self.board();
            let there = board.iter().filter(|seen| phases.contains(&seen.phase())).count();
            (there == workers).then_some(())
        });
    }
}
