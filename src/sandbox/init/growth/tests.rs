//! Functions in simulated time: checks a millisecond apart, workers that compute or sleep.

use proptest::prelude::*;

use super::*;

const TICK_NS: u64 = 1_000_000;

/// A function whose requests never end: a worker that has one computes or sleeps.
struct World {
    now: u64,
    growth: Growth,
    processors: Processors,
    /// What each worker used, with the time for which it waited.
    used: BTreeMap<i32, ProcessorUse>,
    /// Other processes that compute all the time.
    others: u64,
    /// The kernel says how long workers wait.
    has_proc: bool,
    /// Of each worker, by its place: it computes.
    computes: Vec<bool>,
    requests: usize,
    memory: Option<MemoryUse>,
}

impl World {
    fn new(most: usize, queue: usize, processors: usize, computes: Vec<bool>) -> Self {
        Self {
            now: 1,
            growth: Growth::new(1, most, queue),
            processors: Processors { count: processors, quota_milli: None },
            used: BTreeMap::from([(0, ProcessorUse::default())]),
            others: 0,
            has_proc: true,
            computes,
            requests: 0,
            memory: None,
        }
    }

    fn load(&self) -> Load {
        let (workers, requests) = (self.used.len(), self.requests);
        let busy = workers.min(requests);
        Load { waiting: requests - busy, workers, busy }
    }

    /// Runs the workers for a tick, each with its share of the processors, and checks.
    fn tick(&mut self) {
        self.now += TICK_NS;
        let computes = |pid: &i32| {
            let place = usize::try_from(*pid).unwrap();
            place < self.requests && self.computes[place % self.computes.len()]
        };
        let computing: Vec<i32> = self.used.keys().copied().filter(computes).collect();
        let quota = self.processors.quota_milli.unwrap_or(u64::MAX);
        let all = self.processors.count as u64 * TICK_NS;
        let fair = all / (computing.len() as u64 + self.others).max(1);
        let of_quota = (TICK_NS.saturating_mul(quota) / 1000) / (computing.len() as u64).max(1);
        let share = fair.min(of_quota).min(TICK_NS);
        for pid in &computing {
            let used = self.used.get_mut(pid).unwrap();
            used.ran_ns += share;
            used.waited_ns = Some(used.waited_ns.unwrap_or(0) + TICK_NS - share);
        }
        let (load, memory) = (self.load(), self.memory);
        let seen = |(pid, used): (&i32, &ProcessorUse)| {
            let waited_ns = self.has_proc.then(|| used.waited_ns.unwrap_or(0));
            (*pid, ProcessorUse { waited_ns, is_runnable: computing.contains(pid), ..*used })
        };
        let used = self.used.iter().map(seen).collect();
        let more = self.growth.more(self.now, load, || self.processors, || used, || memory);
        for _ in 0..more {
            self.used.insert(i32::try_from(self.used.len()).unwrap(), ProcessorUse::default());
        }
        for _ in 0..self.growth.surplus(self.now, load) {
            self.used.pop_last();
        }
    }

    fn ticks(&mut self, count: u32) -> usize {
        (0..count).for_each(|_| self.tick());
        self.used.len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn workers_that_compute_are_never_more_than_the_processors(
        processors in 1_usize..9, requests in 1_usize..200, others in 0_u64..40,
        quota in proptest::option::of(50_u64..4000), has_proc in any::<bool>(),
    ) {
        let mut world = World::new(32, 1000, processors, vec![true]);
        (world.requests, world.processors.quota_milli) = (requests, quota);
        // Without `/proc`, workers that have nearly no processor look like workers that sleep.
        (world.has_proc, world.others) = (has_proc, if has_proc { others } else { others.min(2) });
        let quota = quota.map_or(usize::MAX, |milli| usize::try_from(milli.div_ceil(1000)).unwrap());
        prop_assert_eq!(world.ticks(1000), requests.min(processors).min(quota));
    }

    #[test]
    fn workers_that_sleep_are_as_many_as_requests_after_some_windows(
        most in 1_usize..40, processors in 1_usize..9, requests in 1_usize..200, has_proc in any::<bool>(),
    ) {
        let mut world = World::new(most, 1000, processors, vec![false]);
        (world.requests, world.has_proc) = (requests, has_proc);
        prop_assert_eq!(world.ticks(8 * 17), requests.min(most));
    }

    #[test]
    fn workers_that_slept_and_compute_now_end(
        processors in 1_usize..9, others in 0_u64..40, most in 1_usize..60,
    ) {
        let mut world = World::new(most, 1000, processors, vec![false]);
        (world.requests, world.others) = (200, others);
        prop_assert_eq!(world.ticks(300), most);
        world.computes = vec![true];
        prop_assert_eq!(world.ticks(3000), most.min(2 * processors));
    }

    #[test]
    fn a_mixture_uses_the_processors(
        computes in proptest::collection::vec(any::<bool>(), 32..=32), processors in 1_usize..9,
    ) {
        let mut world = World::new(32, 1000, processors, computes.clone());
        world.requests = 200;
        let workers = world.ticks(1000);
        let computing = computes[..workers].iter().filter(|it| **it).count();
        let all = workers == 32;
        prop_assert!(all || computing >= processors, "{workers} workers, {computing} compute");
    }

    #[test]
    fn all_but_the_first_worker_end_when_they_are_not_needed(needed in 0_usize..20, most in 2_usize..40) {
        let mut world = World::new(most, 1000, 2, vec![false]);
        world.requests = 100;
        world.ticks(200);
        world.requests = needed;
        // The time in which all were needed, and one in which they were not.
        let mut ended = 0;
        for _ in 0..2 {
            world.now = world.growth.check_at(world.used.len() - ended).unwrap_or(world.now);
            let workers = world.used.len() - ended;
            let load = Load { waiting: 0, workers, busy: needed.min(workers) };
            ended += world.growth.surplus(world.now, load);
        }
        prop_assert_eq!(world.used.len() - ended, needed.clamp(1, most));
    }
}

#[test]
fn memory_and_refusals_bound_it() {
    let mut world = World::new(32, 1000, 2, vec![false]);
    world.requests = 100;
    world.memory = Some(MemoryUse { limit: 64 << 20, each: 16 << 20 });
    assert_eq!(world.ticks(1000), 3, "three quarters of the limit");
    world.memory = Some(MemoryUse { limit: 64 << 20, each: 1 << 40 });
    assert_eq!(world.ticks(1000), 3, "one that needs more than all is no reason to end others");
    world.memory = None;
    world.growth.hold(world.now);
    assert_eq!(world.ticks(1000), 3, "the kernel refused one");
    assert_eq!(world.growth.room(world.now, 3), 0);
    world.now += HOLD_NS;
    assert_eq!(world.ticks(1000), 32);
}

#[test]
fn a_request_beyond_the_queue_gets_a_worker_at_once() {
    let mut world = World::new(4, 2, 1, vec![true]);
    assert_eq!(world.growth.room(world.now, 1), 3);
    world.requests = 3;
    assert_eq!(world.ticks(1000), 1, "they wait in the queue");
    world.requests = 5;
    assert_eq!(world.ticks(1), 3, "two more than the queue holds");
    world.memory = Some(MemoryUse { limit: 1, each: 1 << 20 });
    world.requests = 6;
    assert_eq!(world.ticks(1), 3);
    assert_eq!(
        world.growth.room(world.now, 3),
        0,
        "there is no memory for one: callers are refused"
    );
}

#[test]
fn a_measurement_that_init_slept_through_counts_nothing() {
    let mut world = World::new(32, 1000, 2, vec![false]);
    world.requests = 10;
    assert_eq!(world.ticks(20), 1, "it takes two of them");
    world.now += 1_000_000_000;
    assert_eq!(world.ticks(1), 1);
    assert_eq!(world.ticks(30), 2);
}
