//! Model-checks the protocol: the real slots and roles over the checker's atomics. Its threads stand for processes.
//!
//! [`shuttle`] runs a scene under many schedules, chosen at random and by PCT. It knows sequential consistency only,
//! which is the ordering of every word here, and finds a lost wake-up as a deadlock: a thread that is never woken.
//! (`loom` takes sequentially consistent accesses for acquire and release, and would find faults that are none.)
//!
//! The checker must find a planted [`Fault`]; otherwise the scene could not find it in the code either.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::rand::Rng;
use shuttle::sync::atomic::AtomicU64;
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};
use shuttle::thread;

use super::*;
use cwasi_modes::local::ConnectionId;
use cwasi_sys::clock::Deadline;
use cwasi_sys::shared::{ReadOnly, Word, Words};
use cwasi_wire::ids::CallId;

/// Schedules of each scene, of each kind.
const SCHEDULES: usize = 100;
/// Most schedules until a fault is found, sixteen times the mean of the rarest: 250 by PCT for `RoleBeforeBit`. Another
/// seed, or a change of the code, misses that one with a probability of one in ten million.
const FAULT_SCHEDULES: usize = 4000;
/// Switches that PCT puts where they hurt.
const PCT_DEPTH: usize = 4;

const WORKERS_MAX: usize = 3;
const REQUESTS: u8 = 3;
/// The request that runs until init ends it: the last one, because a later one would wake init.
const ENDLESS: u8 = REQUESTS - 1;
const LINE: ConnectionId = ConnectionId(1);

/// A word of the checker.
#[derive(Debug, Default)]
struct CheckedWord(AtomicU64);

impl Word for CheckedWord {
    fn load(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn load_read_only(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn store(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, SeqCst)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, SeqCst, SeqCst)
    }

    fn fetch_or(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, SeqCst)
    }

    fn fetch_and(&self, bits: u64) -> u64 {
        self.0.fetch_and(bits, SeqCst)
    }
}

/// A mistake in a process' code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The leader hands the lead over and wakes no follower.
    NoWakeup,
    /// A follower checks for a leader before it registers, not after.
    RoleBeforeBit,
    /// Init reads the slots before it sets its sleep flag, not after.
    LooksThenSleeps,
    /// A sleeping init does not hear of requests that wait.
    DeafInSleep,
    /// No follower is woken in a dead leader's place.
    DeathUnnoticed,
    /// Init reads without waiting for workers that read.
    ImpatientReader,
    /// A worker begins a request that init has taken back.
    BeginsTakenBack,
    /// Init treats an assigned request of a dead worker as begun.
    DropsNotBegun,
}

/// What happens in a scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Init is stopped, and the workers are on their own. The first request runs until all others have ended.
    InitStopped,
    /// The last request runs until init ends it.
    Endless,
    /// The first worker that sleeps as the leader is stopped there. It gets no work, and keeps the lead.
    LeaderStuck,
    /// The first worker that sleeps as the leader dies there; init does nothing but notice.
    LeaderDies,
    /// Init disables direct reads and reads itself.
    InitReads,
    /// As `InitReads`, and init takes the first assignment back that has not begun.
    TakenBack,
    /// As `InitReads`, and the first worker that gets an assignment dies before it begins.
    DiesBeforeBegin,
}

/// Why a worker woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Line,
    Init,
    ToLead,
    Over,
}

#[derive(Default)]
struct World {
    connection: VecDeque<u8>,
    /// Messages of init to each worker: a request, or none when it is to look again.
    mail: [VecDeque<Option<u8>>; WORKERS_MAX],
    /// The followers' eventfd, and who sleeps on it and was chosen to be woken.
    eventfd: bool,
    sleeping: [bool; WORKERS_MAX],
    chosen: [bool; WORKERS_MAX],
    /// A worker has woken init.
    notified: bool,
    /// Each worker's last assignment, and its turn.
    assigned: [Option<(SlotState, u8)>; WORKERS_MAX],
    dead: Option<usize>,
    struck: Option<usize>,
    only_reader: bool,
    begun: [u32; REQUESTS as usize],
    ended: u8,
}

struct Model {
    scene: Scene,
    fault: Fault,
    workers: usize,
    inits: Words<CheckedWord>,
    common: Words<CheckedWord>,
    own: [Words<CheckedWord>; WORKERS_MAX],
    world: Mutex<World>,
    changed: Condvar,
}

fn words() -> Words<CheckedWord> {
    std::array::from_fn(|_| CheckedWord(AtomicU64::new(0)))
}

impl Model {
    fn slot(&self, index: usize) -> WorkerSlot<'_, CheckedWord> {
        WorkerSlot::new(
            ReadOnly::new(&self.inits),
            &self.common,
            &self.own[index],
            index,
            self.workers,
        )
    }

    fn slots(&self) -> impl Iterator<Item = WorkerSlot<'_, CheckedWord>> {
        (0..self.workers).map(|index| self.slot(index))
    }

    fn control(&self) -> WorkerControl<'_, CheckedWord> {
        WorkerControl::new(&self.inits, &self.common, self.workers)
    }

    /// Changes the world and wakes all threads that wait for a change.
    fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let done = change(&mut self.world.lock().unwrap());
        self.changed.notify_all();
        done
    }

    /// Sleeps until there is something.
    fn sleep<T>(&self, mut found: impl FnMut(&mut World) -> Option<T>) -> T {
        let mut world: MutexGuard<'_, World> = self.world.lock().unwrap();
        loop {
            if let Some(found) = found(&mut world) {
                return found;
            }
            world = self.changed.wait(world).unwrap();
        }
    }

    /// One sleeping follower is woken, or the next one that goes to sleep.
    fn wake_one(&self) {
        self.change(|world| {
            world.eventfd = true;
            let asleep: Vec<_> = (0..self.workers).filter(|index| world.sleeping[*index]).collect();
            if !asleep.is_empty() {
                world.chosen[asleep[shuttle::rand::thread_rng().gen_range(0..asleep.len())]] = true;
            }
        });
    }

    fn ready(world: &World, index: usize) -> Option<Woken> {
        if world.ended == REQUESTS {
            Some(Woken::Over)
        } else if !world.mail[index].is_empty() {
            Some(Woken::Init)
        } else {
            (!world.connection.is_empty()).then_some(Woken::Line)
        }
    }

    fn sleep_as_leader(&self, index: usize) -> Option<Woken> {
        let stricken = matches!(self.scene, Scene::LeaderStuck | Scene::LeaderDies);
        // One that init has given work has it to do.
        let idle = || self.slot(index).state().phase() == Phase::Idle;
        let first = |world: &mut World| idle() && world.struck.get_or_insert(index) == &index;
        if stricken && self.change(first) {
            if self.scene == Scene::LeaderDies {
                self.change(|world| (world.dead, world.notified) = (Some(index), true));
            }
            return None;
        }
        Some(self.sleep(|world| Self::ready(world, index)))
    }

    fn sleep_as_follower(&self, index: usize) -> Woken {
        self.change(|world| (world.sleeping[index], world.chosen[index]) = (true, world.eventfd));
        self.sleep(|world| {
            let woken = match Self::ready(world, index) {
                Some(Woken::Line) | None => world.chosen[index].then_some(Woken::ToLead)?,
                // A wake-up for it is lost to the others.
                Some(woken) => woken,
            };
            world.sleeping[index] = false;
            if woken == Woken::ToLead {
                world.eventfd = false;
            }
            Some(woken)
        })
    }

    fn take_role(&self, slot: WorkerSlot<'_, CheckedWord>) -> ReaderRole {
        if self.fault == Fault::RoleBeforeBit {
            let leader = self.common[LEADER].compare_exchange(NO_LEADER, slot.number);
            if leader.is_err_and(|leader| leader != slot.number) {
                self.common[FOLLOWERS].fetch_or(1 << slot.number);
                return ReaderRole::Follower;
            }
            return ReaderRole::Leader;
        }
        slot.take_role()
    }

    /// A worker's life, as in `worker::requests`.
    fn work(&self, index: usize) {
        let slot = self.slot(index);
        loop {
            let woken = match slot.become_idle() {
                false => self
                    .sleep(|world| Self::ready(world, index).filter(|woken| *woken != Woken::Line)),
                true => match self.change(|world| Self::ready(world, index)) {
                    Some(woken) => woken,
                    None => match self.take_role(slot) {
                        ReaderRole::Leader => match self.sleep_as_leader(index) {
                            Some(woken) => woken,
                            None => return,
                        },
                        ReaderRole::Follower => {
                            let woken = self.sleep_as_follower(index);
                            slot.stop_following();
                            woken
                        }
                    },
                },
            };
            let begins = match woken {
                Woken::Over => return,
                Woken::ToLead => None,
                Woken::Init => match self.change(|world| world.mail[index].pop_front()).flatten() {
                    Some(_) if self.dies_before_begin(index) => return,
                    request => request.filter(|_| self.begins(slot)),
                },
                Woken::Line if slot.begin_reading(LINE) => self.read(slot),
                Woken::Line => None,
            };
            if let Some(request) = begins
                && !self.run(index, request)
            {
                return;
            }
        }
    }

    fn dies_before_begin(&self, index: usize) -> bool {
        self.change(|world| {
            let dies = self.scene == Scene::DiesBeforeBegin && world.struck.is_none();
            if dies {
                (world.struck, world.dead, world.notified) = (Some(index), Some(index), true);
            }
            dies
        })
    }

    fn begins(&self, slot: WorkerSlot<'_, CheckedWord>) -> bool {
        slot.begin_assigned() || self.fault == Fault::BeginsTakenBack
    }

    fn read(&self, slot: WorkerSlot<'_, CheckedWord>) -> Option<u8> {
        let request = self.change(|world| {
            assert!(!world.only_reader, "init is the only reader");
            world.connection.pop_front()
        });
        match request {
            None => slot.abandon_reading(),
            Some(request) => {
                if slot.begin_running(CallId([request; 16]), Deadline::PASSED) {
                    self.change(|world| world.notified = true);
                }
            }
        }
        request
    }

    /// Runs a request; false when the worker was killed for it.
    fn run(&self, index: usize, request: u8) -> bool {
        let slot = self.slot(index);
        self.change(|world| world.begun[usize::from(request)] += 1);
        // A request that is taken for a short one; the first one is long.
        let waits = self.change(|world| !world.connection.is_empty());
        if !waits && request > 0 && shuttle::rand::thread_rng().gen_bool(0.5) {
            slot.keep_lead();
        } else if slot.hand_over_lead() && self.fault != Fault::NoWakeup {
            self.wake_one();
        }
        self.sleep(|world| match (self.scene, request) {
            (Scene::InitStopped, 0) => (world.ended == REQUESTS - 1).then_some(()),
            (Scene::Endless, ENDLESS) => (slot.state().phase() == Phase::Expired).then_some(()),
            _ => Some(()),
        });
        slot.note_returned();
        let rests = slot.end_turn();
        self.change(|world| {
            world.ended += 1;
            if !rests {
                (world.dead, world.notified) = (Some(index), true);
            }
        });
        rests
    }

    /// Runs init, as in `init::secondary`.
    fn init(&self) {
        if self.scene == Scene::InitStopped {
            return;
        }
        let mut queue = VecDeque::new();
        while self.change(|world| world.ended < REQUESTS) {
            let seen = self.states();
            let dead = self.change(|world| world.dead.take());
            if let Some(dead) = dead {
                queue.extend(self.not_begun(dead));
                if self.slot(dead).clear_role() && self.fault != Fault::DeathUnnoticed {
                    self.wake_one();
                }
            }
            for slot in self.slots() {
                let endless =
                    slot.running_request().filter(|(_, call, _)| call.id == CallId([ENDLESS; 16]));
                if self.scene == Scene::Endless
                    && endless.is_some_and(|(state, ..)| slot.expire(state))
                {
                    self.change(|_| {});
                }
            }
            match self.scene {
                Scene::LeaderStuck => self.sweep(&mut queue),
                Scene::InitReads | Scene::DiesBeforeBegin => self.read_all(&mut queue),
                Scene::TakenBack => {
                    // At once: after a longer way the worker has nearly always begun.
                    self.read_all(&mut queue);
                    self.take_back(&mut queue);
                }
                _ => {}
            }
            if queue.is_empty() {
                self.sleep_if_unchanged(&seen);
            }
            thread::yield_now();
        }
    }

    fn states(&self) -> Vec<SlotState> {
        self.slots().map(|slot| slot.state()).collect()
    }

    /// Sleeps until it is woken, if the workers do what they did when init looked for requests that it has to end.
    fn sleep_if_unchanged(&self, seen: &[SlotState]) {
        let before = self.states();
        self.control().set_asleep(true);
        let now = if self.fault == Fault::LooksThenSleeps { before } else { self.states() };
        if now == seen {
            // Dead and stuck leaders are found by what waits; where init need not read, workers do.
            let hears = self.scene != Scene::LeaderDies && self.fault != Fault::DeafInSleep;
            let reads = !matches!(self.scene, Scene::InitStopped | Scene::Endless);
            self.sleep(|world| {
                let waits = hears && reads && !world.connection.is_empty();
                let needed = std::mem::take(&mut world.notified) || waits;
                (needed || world.ended == REQUESTS).then_some(())
            });
        }
        self.control().set_asleep(false);
    }

    /// No worker reads a waiting request: replaces the leader, and reads once.
    fn sweep(&self, queue: &mut VecDeque<u8>) {
        let swept: Vec<_> = self.change(|world| world.connection.drain(..).collect());
        if !swept.is_empty() && self.control().depose_leader() {
            self.wake_one();
        }
        queue.extend(swept);
        self.assign(queue);
    }

    /// Disables direct reads, reads as the only reader, and enables them when its queue is empty.
    fn read_all(&self, queue: &mut VecDeque<u8>) {
        self.control().set_direct_reads(false);
        while self.fault != Fault::ImpatientReader
            && self.slots().any(|slot| slot.state().phase() == Phase::Reading)
        {
            thread::yield_now();
        }
        self.change(|world| world.only_reader = true);
        queue.extend(self.change(|world| world.connection.pop_front()));
        thread::yield_now();
        self.change(|world| world.only_reader = false);
        self.assign(queue);
        if queue.is_empty() && self.control().set_direct_reads(true) {
            // Idle workers look again.
            self.change(|world| world.mail.iter_mut().for_each(|mail| mail.push_back(None)));
        }
    }

    /// The assignment that a dead worker had not begun.
    fn not_begun(&self, dead: usize) -> Option<u8> {
        let (turn, request) = self.change(|world| world.assigned[dead].take())?;
        let begun = self.slot(dead).state() != turn || self.fault == Fault::DropsNotBegun;
        self.slot(dead).reset();
        (!begun).then_some(request)
    }

    /// Takes one assignment back; its worker gets no other.
    fn take_back(&self, queue: &mut VecDeque<u8>) {
        for index in 0..self.workers {
            let first =
                |world: &mut World| world.assigned[index].filter(|_| world.struck.is_none());
            if let Some((turn, request)) = self.change(first)
                && self.slot(index).unassign(turn)
            {
                self.change(|world| world.struck = Some(index));
                queue.push_front(request);
            }
        }
    }

    fn assign(&self, queue: &mut VecDeque<u8>) {
        for index in 0..self.workers {
            // Init knows which workers are stopped.
            self.change(|world| {
                let stuck = world.struck == Some(index);
                if stuck || queue.is_empty() {
                    return;
                }
                if let Some(turn) = self.slot(index).assign() {
                    let request = queue.pop_front();
                    world.assigned[index] = request.map(|request| (turn, request));
                    world.mail[index].push_back(request);
                }
            });
        }
    }
}

/// One run of a scene: every request is begun once, and ends.
fn play(scene: Scene, fault: Fault, workers: usize) {
    let model = Arc::new(Model {
        scene,
        fault,
        workers,
        inits: words(),
        common: words(),
        own: std::array::from_fn(|_| words()),
        world: Mutex::new(World::default()),
        changed: Condvar::new(),
    });
    model.control().set_direct_reads(true);
    let spawn = |life: fn(&Model, usize), index: usize| {
        let model = Arc::clone(&model);
        thread::spawn(move || life(&model, index))
    };
    let mut threads: Vec<_> = (0..workers).map(|index| spawn(Model::work, index)).collect();
    threads.push(spawn(|model, _| model.init(), 0));
    for request in 0..REQUESTS {
        model.change(|world| world.connection.push_back(request));
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let begun = model.world.lock().unwrap().begun;
    assert_eq!(begun, [1; REQUESTS as usize], "each request is begun once");
}

fn holds(scene: Scene, fault: Fault) -> bool {
    let schedules = if fault == Fault::None { SCHEDULES } else { FAULT_SCHEDULES };
    let checked = catch_unwind(AssertUnwindSafe(|| {
        for workers in 2..=WORKERS_MAX {
            shuttle::check_random(move || play(scene, fault, workers), schedules);
            shuttle::check_pct(move || play(scene, fault, workers), schedules, PCT_DEPTH);
        }
    }));
    checked.is_ok()
}

#[test]
fn requests_are_begun_once_and_end_whatever_the_schedule() {
    use Scene::{
        DiesBeforeBegin, Endless, InitReads, InitStopped, LeaderDies, LeaderStuck, TakenBack,
    };
    let reading = [InitReads, TakenBack, DiesBeforeBegin];
    for scene in [InitStopped, Endless, LeaderStuck, LeaderDies].into_iter().chain(reading) {
        assert!(holds(scene, Fault::None), "{scene:?}");
    }
}

#[test]
fn classical_faults_are_found() {
    let planted = [
        (Scene::InitStopped, Fault::NoWakeup),
        (Scene::InitStopped, Fault::RoleBeforeBit),
        (Scene::Endless, Fault::LooksThenSleeps),
        (Scene::LeaderStuck, Fault::DeafInSleep),
        (Scene::LeaderDies, Fault::DeathUnnoticed),
        (Scene::InitReads, Fault::ImpatientReader),
        (Scene::TakenBack, Fault::BeginsTakenBack),
        (Scene::DiesBeforeBegin, Fault::DropsNotBegun),
    ];
    for (scene, fault) in planted {
        assert!(!holds(scene, fault), "{fault:?} in {scene:?}");
    }
}
