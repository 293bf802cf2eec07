//! What workers do by themselves, seen from init: who is busy, since when, and whether requests wait in connections
//! that workers read. Init looks once in a tick while the function is busy, and sleeps when it is not.
//!
//! Requests wait in connections as long as workers get through them: then each is begun without init. Init reads them
//! itself, and so bounds and times their waiting, when
//! - every worker that reads has been busy with the same request for a tick,
//! - or more wait than the queue has places,
//! - or one of them has been idle for a tick, and none has begun a request, although something waits: it was not woken,
//!   or the one that was has died,
//! - or nothing that waits has been read for a few ticks, whatever workers say that they do.
//!
//! While init has requests the gate is closed: workers take only what init gives them, so that what came first goes
//! first.
//!
//! A sleeping init wakes with the first request that waits in a connection. So a request that the leader does not read,
//! because it is stopped, slow or makes its next instance, is read by init within about two ticks. Stopped workers get no
//! work.

use std::collections::BTreeMap;

use crate::modes::local::receiver::{ConnectionId, Head};
use crate::sandbox::board::{Phase, READERS_MAX, Seen};
use crate::sys::clock::monotonic_ns;
use crate::sys::processors;
use crate::vm::Module;
use crate::wire::control::FunctionLaunch;

use super::Secondary;

/// Time between two looks in nanoseconds: how much later than at once a caller hears that the function is overloaded,
/// or a waiting request gets its place.
const TICK_NS: u64 = 1_000_000;
/// Ticks in which something that waits must have been read, or workers do not do what they say.
const STALLED_TICKS: u32 = 4;
/// Ticks without a request after which init sleeps. The first request after that wakes it.
const QUIET_TICKS: u32 = 20;
/// Most copies of connections that workers hold together; connections beyond are read by init alone.
const COPIES_MAX: usize = 1024;
/// Times that init lets workers that read at this moment go first.
const YIELDS_MAX: u32 = 100;

/// What init saw at its last look.
#[derive(Debug)]
pub struct Lookout {
    seen: Vec<Seen>,
    next: u64,
    quiet: u32,
    /// Init reads what workers read.
    reading: bool,
    /// What was first in the connections some ticks ago.
    heads: BTreeMap<ConnectionId, Head>,
    heads_age: u32,
}

/// What is to be done about requests that wait in connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// They are for whoever is free next.
    Leave,
    /// Init reads them until somebody is free.
    Read,
    /// Init reads those that are there now.
    Sweep,
}

impl Lookout {
    /// For a function whose workers take requests themselves: not where each request must be counted, or waits for
    /// others, before anybody runs it.
    pub fn of(launch: &FunctionLaunch) -> Option<Self> {
        (launch.fan_in.is_none() && launch.max_requests == 0).then(|| Self {
            seen: Vec::new(),
            next: 0,
            quiet: 0,
            reading: false,
            heads: BTreeMap::new(),
            heads_age: 0,
        })
    }

    /// Forgets what it saw long ago: a request has a tick to be read by a worker before init reads it.
    pub fn begin_anew(&mut self) {
        self.seen.clear();
    }

    /// Who has the same request as at the last look.
    fn long<'a>(&'a self, seen: &'a [Seen]) -> impl Iterator<Item = usize> + 'a {
        let same = |(now, before): (&Seen, &Seen)| now == before && now.is_busy();
        let both = seen.iter().zip(&self.seen).enumerate();
        both.filter(move |(_, pair)| same(*pair)).map(|(index, _)| index)
    }

    /// True when requests wait and none of them has been read for some ticks: what is in a connection no worker can make
    /// up.
    fn is_stalled(
        &mut self,
        waiting: bool,
        heads: impl FnOnce() -> BTreeMap<ConnectionId, Head>,
    ) -> bool {
        self.heads_age += 1;
        if !waiting {
            self.heads.clear();
            self.heads_age = 0;
        }
        if self.heads_age < STALLED_TICKS {
            return false;
        }
        self.heads_age = 0;
        let before = std::mem::replace(&mut self.heads, heads());
        let unread = |(id, head): (&ConnectionId, &Head)| self.heads.get(id) == Some(head);
        !before.is_empty() && before.iter().all(unread)
    }

    /// Takes the next look. `waiting` says whether requests wait, and whether they are more than may wait beside as many
    /// free workers.
    fn look(&mut self, seen: Vec<Seen>, waiting: impl FnOnce(usize) -> (bool, bool)) -> Verdict {
        let moved = seen != self.seen;
        let busy = seen.iter().any(|seen| seen.is_busy());
        let readers = || seen.iter().zip(&self.seen).take(READERS_MAX);
        let begun = readers().any(|(now, before)| now.is_later_than(*before));
        let idle = readers().any(|(now, before)| {
            now == before && matches!(now.phase(), Phase::Idle | Phase::Parked)
        });
        let stuck =
            !self.seen.is_empty() && readers().all(|(now, before)| now == before && !now.is_free());
        let free = seen.iter().filter(|seen| seen.is_free()).count();
        self.seen = seen;
        self.quiet = if moved || busy { 0 } else { self.quiet.saturating_add(1) };
        match waiting(free) {
            (false, _) => Verdict::Leave,
            (true, true) => Verdict::Read,
            (true, false) if idle && !begun => Verdict::Sweep,
            (true, false) if stuck => Verdict::Read,
            (true, false) => Verdict::Leave,
        }
    }
}

impl<M: Module> Secondary<'_, M> {
    /// Lets workers read from a connection, unless they hold too many already.
    pub(super) fn share(&mut self, id: ConnectionId) {
        let readers = self.pool.board().readers();
        let copies = (self.receiver.shared_count() + 1).saturating_mul(readers);
        // One worker's connections are few enough whatever their number.
        if self.lookout.is_none() || copies > COPIES_MAX.max(readers) {
            return;
        }
        let Some(line) = self.receiver.line(id) else { return };
        if self.pool.share(&line)
            && let Err(error) = self.receiver.share(id)
        {
            self.complain(&format!("a caller's connection cannot be watched: {error}"));
        }
    }

    /// A connection has ended, which workers may hold. Where none is shared they wait for parts, and hear of nothing else.
    pub(super) fn unshare(&self) {
        if self.lookout.is_some() {
            self.pool.unshare();
        }
    }

    /// Whether init reads what workers read, now.
    pub(super) fn reads_shared(&self) -> bool {
        self.stop.is_some() || self.lookout.as_ref().is_some_and(|lookout| lookout.reading)
    }

    /// When to look next; `None` when init need not look before somebody wakes it.
    pub(super) fn sleep(&self) -> Option<u64> {
        let lookout = self.lookout.as_ref()?;
        if lookout.quiet < QUIET_TICKS || lookout.reading || self.stop.is_some() {
            return Some(lookout.next);
        }
        let board = self.pool.board();
        board.control().set_asleep(true);
        // Who began before it could see that init sleeps is seen here.
        if self.pool.seen().any(|seen| seen.is_busy()) {
            board.control().set_asleep(false);
            return Some(lookout.next);
        }
        None
    }

    /// Looks what workers do, when it is time to.
    pub(super) fn look_out(&mut self) {
        let now = monotonic_ns();
        let Some(lookout) = self.lookout.as_mut().filter(|lookout| lookout.next <= now) else {
            return;
        };
        if lookout.quiet >= QUIET_TICKS {
            // Somebody woke it.
            lookout.quiet = 0;
        }
        lookout.next = now.saturating_add(TICK_NS);
        let seen: Vec<_> = self.pool.seen().collect();
        if seen.iter().zip(&lookout.seen).any(|(seen, before)| seen.is_later_than(*before)) {
            self.last_request = now;
            self.pool.note_turns();
        }
        self.pool.note_long(lookout.long(&seen));
        // The container's cpuset may have changed.
        self.pool.board().control().set_processors(processors::count().unwrap_or(0));
        let mut ready: Vec<ConnectionId> = Vec::new();
        let (receiver, places) = (&self.receiver, self.queue.places());
        let verdict = lookout.look(seen, |free| {
            ready.extend(receiver.shared_ready());
            let more = || receiver.more_wait_than(places.saturating_add(free), &ready);
            (!ready.is_empty(), !ready.is_empty() && more())
        });
        let heads = || receiver.heads(&ready).into_iter().collect();
        let stalled = lookout.is_stalled(!ready.is_empty(), heads);
        let verdict = match verdict {
            Verdict::Leave if stalled && self.pool.idle().is_some() => Verdict::Sweep,
            Verdict::Leave if stalled => Verdict::Read,
            verdict => verdict,
        };
        match verdict {
            Verdict::Leave => {}
            Verdict::Read => self.begin_reading(),
            Verdict::Sweep => {
                self.pool.depose_leader();
                ready.into_iter().for_each(|id| self.read(id));
            }
        }
    }

    /// From now on init is the only one who reads from connections.
    fn begin_reading(&mut self) {
        let Some(lookout) = &mut self.lookout else { return };
        if std::mem::replace(&mut lookout.reading, true) {
            return;
        }
        self.pool.set_gate(false);
        // Who takes a request at this moment took it before those that init reads. One that takes longer is stopped
        // or dead; then order is not what matters.
        for _ in 0..YIELDS_MAX {
            if !self.pool.seen().any(|seen| seen.phase() == Phase::Taking) {
                return;
            }
            let _never_fails = nix::sched::sched_yield();
        }
    }

    /// Opens the gate when init has nothing to give out and nothing to read, and closes it when it has.
    pub(super) fn mind_gate(&mut self) {
        let rest = self.queue.is_empty() && self.stop.is_none();
        let Some(lookout) = &mut self.lookout else { return };
        if lookout.reading && rest && self.pool.has_free_reader() {
            lookout.reading = false;
        }
        let open = rest && !lookout.reading;
        self.pool.set_gate(open);
        if !open {
            // Who became free before it could see the closed gate is seen here.
            self.assign();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::board::{Board, Wait};
    use crate::wire::ids::CallId;

    fn lookout() -> Lookout {
        let (seen, heads) = (Vec::new(), BTreeMap::new());
        Lookout { seen, next: 0, quiet: 0, reading: false, heads, heads_age: 0 }
    }

    fn run(board: &Board, index: usize) {
        let slot = board.slot(index).unwrap();
        assert!(slot.take(ConnectionId(1)));
        assert!(!slot.run(CallId([1; 16]), 1));
    }

    fn seen(board: &Board) -> Vec<Seen> {
        (0..2).map(|index| board.slot(index).unwrap().seen()).collect()
    }

    fn two_idle() -> Board {
        let board = Board::new(2).unwrap();
        board.control().set_gate(true);
        for index in 0..2 {
            assert_eq!(board.slot(index).unwrap().settle(), Wait::Anybody);
        }
        board
    }

    #[test]
    fn requests_are_left_to_workers_that_get_on() {
        let (board, mut lookout) = (two_idle(), lookout());
        run(&board, 0);
        run(&board, 1);
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave);
        assert!(board.slot(0).unwrap().rest());
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave);
        board.slot(0).unwrap().settle();
        run(&board, 0);
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave);
        assert_eq!(lookout.look(seen(&board), |_| (false, false)), Verdict::Leave);
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Read, "all are stuck");
    }

    #[test]
    fn who_has_one_request_from_look_to_look_has_it_for_long() {
        let (board, mut lookout) = (two_idle(), lookout());
        let mut look = |long: &[usize]| {
            let seen = seen(&board);
            assert_eq!(lookout.long(&seen).collect::<Vec<_>>(), long);
            lookout.look(seen, |_| (false, false));
        };
        run(&board, 0);
        look(&[]);
        run(&board, 1);
        look(&[0]);
        assert!(board.slot(0).unwrap().rest());
        board.slot(0).unwrap().settle();
        run(&board, 0);
        look(&[1]);
        look(&[0, 1]);
    }

    #[test]
    fn more_than_may_wait_is_read_at_once() {
        let (board, mut lookout) = (two_idle(), lookout());
        run(&board, 0);
        let verdict = lookout.look(seen(&board), |free| {
            assert_eq!(free, 1);
            (true, true)
        });
        assert_eq!(verdict, Verdict::Read);
    }

    #[test]
    fn what_waits_beside_an_idle_worker_for_a_tick_is_swept_up() {
        let (board, mut lookout) = (two_idle(), lookout());
        run(&board, 0);
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave, "a first look");
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Sweep);
    }

    #[test]
    fn what_waits_is_left_to_one_that_gets_on_while_others_rest() {
        let (board, mut lookout) = (two_idle(), lookout());
        assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave, "a first look");
        for _ in 0..3 {
            run(&board, 0);
            assert_eq!(lookout.look(seen(&board), |_| (true, false)), Verdict::Leave);
            assert!(board.slot(0).unwrap().rest());
            board.slot(0).unwrap().settle();
        }
    }

    #[test]
    fn when_all_that_read_are_busy_init_reads_for_the_others() {
        let (board, mut lookout) = (Board::new(READERS_MAX + 1).unwrap(), lookout());
        board.control().set_gate(true);
        let all = || (0..=READERS_MAX).map(|index| board.slot(index).unwrap());
        all().for_each(|slot| {
            slot.settle();
        });
        (0..READERS_MAX).for_each(|index| run(&board, index));
        let mut look = || lookout.look(all().map(|slot| slot.seen()).collect(), |_| (true, false));
        assert_eq!(look(), Verdict::Leave, "a first look");
        assert_eq!(look(), Verdict::Read);
    }

    #[test]
    fn what_nobody_reads_is_found_whatever_workers_say() {
        let mut lookout = lookout();
        let heads = |heads: &[(u64, u8)]| -> BTreeMap<_, _> {
            heads.iter().map(|(id, byte)| (ConnectionId(*id), [*byte; size_of::<Head>()])).collect()
        };
        let mut ticks = |times: u32, now: &[(u64, u8)]| -> Vec<bool> {
            (0..times).map(|_| lookout.is_stalled(!now.is_empty(), || heads(now))).collect()
        };
        let never = vec![false; STALLED_TICKS as usize];
        let mut found = never.clone();
        found[never.len() - 1] = true;
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 7)]), never, "a first look");
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 8)]), never, "one was read");
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (2, 8), (3, 1)]), found, "one more waits");
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), never, "one has ended");
        assert_eq!(ticks(1, &[]), [false]);
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), never, "nothing waited in between");
        assert_eq!(ticks(STALLED_TICKS, &[(1, 7), (3, 1)]), found);
    }

    #[test]
    fn quiet_is_counted_from_the_last_change() {
        let (board, mut lookout) = (two_idle(), lookout());
        for quiet in [0, 1, 2] {
            lookout.look(seen(&board), |_| (false, false));
            assert_eq!(lookout.quiet, quiet);
        }
        run(&board, 0);
        lookout.look(seen(&board), |_| (false, false));
        lookout.look(seen(&board), |_| (false, false));
        assert_eq!(lookout.quiet, 0, "a worker is busy");
    }
}
