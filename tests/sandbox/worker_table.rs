//! What a function's workers do, read from init's table in its memory: no clock says it, and no wait channel.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cwasi_sandbox::worker_table::{ASLEEP, FOLLOWERS, LEADER, Phase, SlotState};
use cwasi_sys::mapping::page_len;

use crate::fixture::eventually;
use crate::function::Function;

/// Bytes of a word.
const WORD: u64 = 8;

/// The shared pages of a function, in the memory of its init.
pub struct Pages {
    memory: File,
    /// Init's own page, which workers can only read.
    inits: u64,
    /// The common page, and one for each slot.
    starts: Vec<u64>,
}

impl Pages {
    fn of(function: &Function<'_>) -> Self {
        let pid = function.container.pid;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let pages = |name: &'static str| {
            maps.lines().filter(move |line| line.ends_with(name)).flat_map(|line| {
                let (start, rest) = line.split_once('-').unwrap();
                let end = rest.split(' ').next().unwrap();
                let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
                (start..end).step_by(page_len().unwrap())
            })
        };
        // The only shared memory of init that is no file; its own page is mapped twice.
        let starts = pages("/dev/zero (deleted)").collect();
        let inits = pages("/memfd:cwasi-owner (deleted)").next().unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        Self { memory: memory.unwrap(), inits, starts }
    }

    fn read(&self, page: u64, word: usize) -> u64 {
        let mut bytes = [0; WORD as usize];
        self.memory.read_exact_at(&mut bytes, page + WORD * word as u64).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn write(&self, page: u64, word: usize, value: u64) {
        self.memory.write_all_at(&value.to_le_bytes(), page + WORD * word as u64).unwrap();
    }

    fn slots(&self) -> &[u64] {
        &self.starts[1..]
    }

    /// Names a worker as the leader, as each worker can.
    pub fn set_leader(&self, index: usize) {
        self.write(self.starts[0], LEADER, index as u64 + 1);
    }

    /// Has a worker's slot say that it runs one request after the other, as that worker can.
    pub fn pretend_to_run(&self, index: usize, turn: u64) {
        self.write(self.slots()[index], 0, turn << 8 | Phase::Running as u64);
    }
}

impl Function<'_> {
    /// What its workers can write.
    pub fn pages(&self) -> Pages {
        Pages::of(self)
    }

    /// True while its init sleeps until a request wakes it.
    pub fn init_is_asleep(&self) -> bool {
        let pages = self.pages();
        pages.read(pages.inits, ASLEEP) != 0
    }

    /// What each worker does, in the order of their slots.
    pub fn table(&self) -> Vec<SlotState> {
        let pages = self.pages();
        pages.slots().iter().map(|slot| SlotState(pages.read(*slot, 0))).collect()
    }

    /// The worker that sleeps on the connections, or will soon; by slot.
    pub fn leader(&self) -> Option<usize> {
        let pages = self.pages();
        usize::try_from(pages.read(pages.starts[0], LEADER)).unwrap().checked_sub(1)
    }

    /// The workers that sleep until they are woken to lead; by slot.
    pub fn followers(&self) -> Vec<usize> {
        let pages = self.pages();
        let bits = pages.read(pages.starts[0], FOLLOWERS);
        (0..pages.slots().len()).filter(|index| bits & 1 << (index + 1) != 0).collect()
    }

    /// Waits until as many workers wait for a request.
    pub fn until_idle(&self, workers: usize) {
        self.until("workers that wait", workers, &[Phase::Idle]);
    }

    /// Waits until as many workers run a request, and have all of it.
    pub fn until_busy(&self, workers: usize) {
        self.until("busy workers", workers, &[Phase::Running]);
    }

    fn until(&self, what: &str, workers: usize, phases: &[Phase]) {
        eventually(what, || {
            let table = self.table();
            let there = table.iter().filter(|state| phases.contains(&state.phase())).count();
            (there == workers).then_some(())
        });
    }
}
