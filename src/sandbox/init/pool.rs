//! The workers of a sandbox: forked ahead, watched, replaced.
#![expect(unsafe_code, reason = "a forked child has only a part of the shared pages")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::modes::local::{Line, LocalError, forward_frame, send_frame};
use crate::sandbox::board::{Board, Phase, Seen, Slot};
use crate::sandbox::messages::{WORKER_MESSAGE_MAX, WorkerMessage};
use crate::sandbox::worker::Seat;
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::watch::Watch;
use crate::wire::control;
use crate::wire::envelope::{self, Assignment, Request};

use super::doing::{Doing, Lost, Running};
use super::handover::{self, Unsent};
use super::signals::Ending;
use super::work::Work;

/// Wait before a worker that died without having served anything is replaced, in nanoseconds; doubles
/// with each such death in a row.
const BACKOFF_MIN_NS: u64 = 10_000_000;
/// Longest such wait in nanoseconds.
const BACKOFF_MAX_NS: u64 = 5_000_000_000;

/// Makes a worker: its pid and init's end of the socketpair. In the child it does not return.
pub trait Fork {
    /// Forks one. The child touches no page of the board but the common one and its own.
    ///
    /// # Errors
    /// When the kernel refuses; it is tried again later.
    fn fork(&self, seat: Seat<'_>) -> io::Result<(Pid, OwnedFd)>;
}

#[derive(Debug)]
struct Worker {
    pid: Pid,
    socket: OwnedFd,
    /// It has, or had, its first instance.
    started: bool,
    /// What it was given and has not said to be done.
    running: Option<Running>,
    /// Parts of its group that its socket had no room for yet.
    unsent: VecDeque<Unsent>,
}

#[derive(Debug)]
enum Place {
    Taken(Worker),
    /// To be forked at this time.
    Empty {
        not_before: u64,
    },
}

/// All workers of one sandbox.
#[derive(Debug)]
pub struct Pool<F> {
    fork: F,
    places: Vec<Place>,
    /// What they do: a slot for each place.
    board: Board,
    /// Their sockets, under their numbers.
    watch: Watch,
    early_deaths: u32,
}

impl<F: Fork> Pool<F> {
    /// `count` workers, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new(fork: F, count: usize) -> io::Result<Self> {
        let places: Vec<_> = (0..count.max(1)).map(|_| Place::Empty { not_before: 0 }).collect();
        let board = Board::new(places.len())?;
        Ok(Self { fork, places, board, watch: Watch::new()?, early_deaths: 0 })
    }

    /// How many there are to be.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// What all of them see.
    pub const fn board(&self) -> &Board {
        &self.board
    }

    /// Forks the workers whose time has come; they read from `lines`.
    ///
    /// # Errors
    /// The first refusal of the kernel; the worker is tried again after the backoff.
    pub fn fork_due(&mut self, now: u64, lines: impl Fn() -> Vec<Line>) -> io::Result<()> {
        for index in 0..self.places.len() {
            if !matches!(self.places[index], Place::Empty { not_before } if not_before <= now) {
                continue;
            }
            match self.fork_at(index, lines()) {
                Ok((pid, socket)) => {
                    let unsent = VecDeque::new();
                    let worker = Worker { pid, socket, started: false, running: None, unsent };
                    self.places[index] = Place::Taken(worker);
                }
                Err(error) => {
                    self.early_deaths = self.early_deaths.saturating_add(1);
                    let not_before = now.saturating_add(backoff_ns(self.early_deaths));
                    self.places[index] = Place::Empty { not_before };
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn fork_at(&self, index: usize, lines: Vec<Line>) -> io::Result<(Pid, OwnedFd)> {
        let slot = self.board.slot(index).ok_or(io::ErrorKind::NotFound)?;
        slot.reset();
        // SAFETY:
        // - the child has a seat with this slot and never gets to the board or another slot (`Fork::fork`).
        let forked =
            unsafe { self.board.pages().pass_on(index, || self.fork.fork(Seat { slot, lines })) };
        let (pid, socket) = forked??;
        // Unwatched it would never be given work; it ends with its socket.
        self.watch.add(socket.as_fd(), u64::try_from(index).unwrap_or(u64::MAX))?;
        Ok((pid, socket))
    }

    fn workers(&self) -> impl Iterator<Item = (usize, &Worker, Slot<'_>)> {
        self.places.iter().enumerate().filter_map(|(index, place)| match place {
            Place::Taken(worker) => Some((index, worker, self.board.slot(index)?)),
            Place::Empty { .. } => None,
        })
    }

    /// To be polled for input: a worker says something.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Numbers of the workers that said something.
    pub fn ready(&self) -> impl Iterator<Item = usize> {
        self.watch.ready().into_iter().filter_map(|key| usize::try_from(key).ok())
    }

    /// Numbers and sockets of the workers that have not got all of their group, to be polled for room.
    pub fn unfed(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.workers()
            .filter(|(_, worker, _)| !worker.unsent.is_empty())
            .map(|(index, worker, _)| (index, worker.socket.as_fd()))
    }

    /// Sends a worker what is left of its group, as much as its socket takes.
    ///
    /// # Errors
    /// When a part cannot be sent at all; the worker is killed for it.
    pub fn feed(&mut self, index: usize) -> Result<(), LocalError> {
        let Some(Place::Taken(worker)) = self.places.get_mut(index) else { return Ok(()) };
        while let Some(next) = worker.unsent.front() {
            match next.send(worker.socket.as_fd()) {
                Ok(()) => worker.unsent.pop_front(),
                // Its exit is on the way, or there is no room.
                Err(LocalError::Socket(SocketError::Closed | SocketError::Deadline)) => break,
                Err(error) => {
                    let _gone = kill(worker.pid, Signal::SIGKILL);
                    return Err(error);
                }
            };
        }
        Ok(())
    }

    /// Reads what a worker says; the text of a failed start is returned.
    pub fn read(&mut self, index: usize) -> Option<String> {
        let seen = self.board.slot(index)?.seen();
        let Some(Place::Taken(worker)) = self.places.get_mut(index) else { return None };
        let mut failed = None;
        let mut buffer = [0; WORKER_MESSAGE_MAX];
        // An ended worker is noticed by its exit, not by its socket.
        while let Ok(Some(received)) = seqpacket::try_receive(worker.socket.as_fd(), &mut buffer) {
            match control::decode::<WorkerMessage>(&buffer[..received.len]) {
                Ok(WorkerMessage::Ready) => worker.started = true,
                Ok(WorkerMessage::Done | WorkerMessage::Took) => {}
                Ok(WorkerMessage::StartFailed { message }) => failed = Some(message),
                // Our own fork of our own binary: cannot happen unless the guest broke out; not trusted on.
                Err(_malformed) => {
                    let _gone = kill(worker.pid, Signal::SIGKILL);
                }
            }
        }
        // A message may be about an earlier turn; the slot says whether this one is over.
        if worker.running.as_ref().is_some_and(|running| running.is_over(seen)) {
            worker.running = None;
        }
        failed
    }

    /// True when every worker is there and has its first instance.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.workers().filter(|(_, worker, _)| worker.started).count() == self.places.len()
    }

    /// What every worker's slot says now; an empty place's is that of its last worker.
    pub fn seen(&self) -> impl Iterator<Item = Seen> {
        (0..self.places.len()).filter_map(|index| Some(self.board.slot(index)?.seen()))
    }

    /// Workers serve requests: the next one that dies early is the first in a row.
    pub const fn note_turns(&mut self) {
        self.early_deaths = 0;
    }

    /// A worker without work; one that is still making its instance when there is no other.
    #[must_use]
    pub fn idle(&self) -> Option<usize> {
        let mut making = None;
        for (index, worker, slot) in self.workers() {
            let seen = slot.seen();
            if worker.started && worker.running.is_none() && seen.is_free() {
                if seen.phase() != Phase::Making {
                    return Some(index);
                }
                making.get_or_insert(index);
            }
        }
        making
    }

    /// True when no worker has work.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        !self.workers().any(|(_, worker, slot)| worker.running.is_some() || slot.seen().is_busy())
    }

    /// Hands work to an idle worker.
    ///
    /// # Errors
    /// Gives it back when the worker has just died, or found something to do ([`None`]), or the work cannot be sent.
    pub fn assign(
        &mut self,
        index: usize,
        work: Work,
        deadline: u64,
    ) -> Result<(), (Work, Option<LocalError>)> {
        let (Some(Place::Taken(worker)), Some(slot)) =
            (self.places.get_mut(index), self.board.slot(index))
        else {
            return Err((work, None));
        };
        let Some(turn) = slot.assign() else { return Err((work, None)) };
        let first = work.first();
        let assignment = Assignment {
            request: Some(Request { target: String::new(), ..first.request.clone() }).into(),
            caller: handover::caller(&work),
            deadline_mono_ns: deadline,
            group: handover::group(&work).into(),
            lends: work.calls().all(|incoming| incoming.lends),
            ..Assignment::default()
        };
        let connection = [first.reply_to.as_fd()];
        let socket = worker.socket.as_fd();
        match forward_frame(socket, &assignment, &first.payload, &connection, Some(0)) {
            Ok(()) => {
                let (reply, others, unsent) = handover::rest(work);
                worker.running = Some(Running { reply, others, deadline, expired: false, turn });
                worker.unsent = unsent;
                self.early_deaths = 0;
                // What does not go now is tried again when there is room, and then a fault is reported.
                self.feed(index).or(Ok(()))
            }
            // Its exit is on the way; until then its turn keeps others from giving it anything.
            Err(LocalError::Socket(SocketError::Closed)) => Err((work, None)),
            Err(error) => {
                slot.take_away(turn);
                look_again(worker);
                Err((work, Some(error)))
            }
        }
    }

    /// Lets every worker read from a connection; false when not all of them can be told now.
    pub fn share(&self, line: &Line) -> bool {
        let envelope = envelope::Line {
            connection: line.id.0,
            caller: line.caller.clone(),
            lends: line.lends,
            ..envelope::Line::default()
        };
        let told = self.workers().filter(|(_, worker, _)| {
            let (socket, extra) = (worker.socket.as_fd(), [line.fd.as_fd()]);
            match send_frame(socket, &envelope, b"", &extra, Some(0)) {
                // Its exit is on the way.
                Ok(()) | Err(LocalError::Socket(SocketError::Closed)) => true,
                Err(_no_room) => false,
            }
        });
        told.count() == self.workers().count()
    }

    /// Workers read from connections, or only init does.
    pub fn set_gate(&self, open: bool) {
        if self.board.set_gate(open) && open {
            let parked = |slot: &Slot<'_>| slot.seen().phase() == Phase::Parked;
            self.workers()
                .filter(|(_, _, slot)| parked(slot))
                .for_each(|(_, worker, _)| look_again(worker));
        }
    }

    /// Kills workers whose requests are out of time; their exits follow.
    pub fn expire(&mut self, now: u64) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let (Place::Taken(worker), Some(slot)) = (place, self.board.slot(index)) else {
                continue;
            };
            let over = match &mut worker.running {
                Some(running) if running.expired || running.deadline > now => false,
                Some(running) => {
                    running.expired = slot.expire(running.turn);
                    running.expired
                }
                None => slot.took().is_some_and(|(seen, took)| {
                    seen.phase() == Phase::Running && took.deadline <= now && slot.expire(seen)
                }),
            };
            if over {
                let _gone = kill(worker.pid, Signal::SIGKILL);
            }
        }
    }

    /// Takes out a worker that ended; `None` when the pid is no worker's.
    pub fn remove(&mut self, pid: Pid, ending: Ending, now: u64) -> Option<Lost> {
        let index = self.workers().find(|(_, worker, _)| worker.pid == pid)?.0;
        // It may have said "done" with its last breath.
        let _failed = self.read(index);
        let slot = self.board.slot(index)?;
        let place = self.places.get_mut(index)?;
        let Place::Taken(worker) = place else { return None };
        let unbegun = !worker.unsent.is_empty();
        let starting = !worker.started;
        let doing = Doing::of(worker.running.take(), slot);
        let proven = slot.had_turns();
        self.watch.remove(worker.socket.as_fd());
        self.early_deaths = if proven { 0 } else { self.early_deaths.saturating_add(1) };
        let wait = if proven { 0 } else { backoff_ns(self.early_deaths) };
        *place = Place::Empty { not_before: now.saturating_add(wait) };
        Some(Lost { ending, doing, unbegun, starting })
    }

    /// Ends every worker and gives back what they were doing.
    pub fn kill_all(&mut self) -> Vec<Doing> {
        let mut left = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            let empty = Place::Empty { not_before: u64::MAX };
            if let (Place::Taken(mut worker), Some(slot)) =
                (std::mem::replace(place, empty), self.board.slot(index))
            {
                let _gone = kill(worker.pid, Signal::SIGKILL);
                left.push(Doing::of(worker.running.take(), slot));
            }
        }
        left
    }

    /// When something is to be done without anybody saying so: a fork, a deadline.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        let forks = self.places.iter().filter_map(|place| match place {
            Place::Empty { not_before } => Some(*not_before),
            Place::Taken(_) => None,
        });
        let deadlines = self.workers().filter_map(|(_, worker, slot)| match &worker.running {
            Some(running) => (!running.expired).then_some(running.deadline),
            None => slot
                .took()
                .filter(|(seen, _)| seen.phase() == Phase::Running)
                .map(|(_, took)| took.deadline),
        });
        forks.chain(deadlines).min()
    }
}

/// Wakes a worker that waits for init only.
fn look_again(worker: &Worker) {
    // One without room for it has other messages to be woken by; one that is gone is noticed by its exit.
    let _unsent = send_frame(worker.socket.as_fd(), &envelope::Line::default(), b"", &[], Some(0));
}

fn backoff_ns(deaths: u32) -> u64 {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN_NS << doublings).min(BACKOFF_MAX_NS)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::modes::Payload;
    use crate::modes::local::Incoming;
    use crate::modes::local::receiver::ConnectionId;
    use crate::sandbox::init::work::Parts;
    use crate::wire::envelope::Part;
    use crate::wire::frame::{self, FRAME_MAX};
    use crate::wire::ids::{CallId, Identity};

    /// Workers that are only sockets; their far ends are kept here.
    #[derive(Default)]
    struct Sockets(RefCell<Vec<OwnedFd>>);

    impl Fork for &Sockets {
        fn fork(&self, _seat: Seat<'_>) -> io::Result<(Pid, OwnedFd)> {
            let (ours, theirs) = seqpacket::pair().unwrap();
            self.0.borrow_mut().push(theirs);
            let number = i32::try_from(self.0.borrow().len()).unwrap();
            // Above every real pid, so that a kill hits nobody.
            Ok((Pid::from_raw((1 << 30) + number), ours))
        }
    }

    impl Sockets {
        fn say(&self, number: usize, message: &WorkerMessage) {
            let sockets = self.0.borrow();
            seqpacket::send(sockets[number].as_fd(), &[&control::encode(message)], &[], Some(0))
                .unwrap();
        }
    }

    /// A worker has its first instance.
    fn ready(pool: &Pool<&Sockets>, sockets: &Sockets, number: usize) {
        let _gate = pool.board().slot(number).unwrap().settle();
        sockets.say(number, &WorkerMessage::Ready);
    }

    /// What a lost worker had been given.
    fn given(lost: &Lost) -> &Running {
        match &lost.doing {
            Doing::Given(running) => running,
            other => panic!("{other:?}"),
        }
    }

    fn pid(number: i32) -> Pid {
        Pid::from_raw((1 << 30) + number)
    }

    #[test]
    fn a_worker_that_dies_at_once_is_replaced_later_and_later() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        let mut now = 1;
        let mut waits = Vec::new();
        for number in 1..=12 {
            pool.fork_due(now, Vec::new).unwrap();
            let lost = pool.remove(pid(number), Ending::Exited(1), now).unwrap();
            assert!(lost.starting && matches!(lost.doing, Doing::Nothing));
            waits.push(pool.next_wakeup().unwrap() - now);
            now = pool.next_wakeup().unwrap();
        }
        assert_eq!(waits[0], BACKOFF_MIN_NS);
        assert_eq!(waits[1], 2 * BACKOFF_MIN_NS);
        assert_eq!(waits[11], BACKOFF_MAX_NS);
    }

    #[test]
    fn workers_are_idle_once_they_said_so() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 2).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        assert!(pool.idle().is_none() && !pool.complete());
        ready(&pool, &sockets, 1);
        assert_eq!(pool.read(1), None);
        assert_eq!(pool.idle(), Some(1));
        assert!(!pool.complete());
        sockets.say(0, &WorkerMessage::StartFailed { message: "no".into() });
        assert_eq!(pool.read(0).as_deref(), Some("no"));
    }

    /// A group of `count` parts that came over two connections, more than a socket holds.
    fn group(count: u32) -> Work {
        let (one, two) = seqpacket::pair().unwrap();
        let connections = [Rc::new(one), Rc::new(two)];
        let calls = (0..count).map(|number| {
            let index = usize::try_from(number % 2).unwrap();
            let incoming = Incoming {
                connection: ConnectionId(u64::from(number % 2)),
                reply_to: Rc::clone(&connections[index]),
                caller: Identity {
                    namespace: String::new(),
                    pod_namespace: String::new(),
                    function: "a".into(),
                },
                id: CallId([u8::try_from(number).unwrap(); 16]),
                request: Request { call_id: vec![0; 16], ..Request::default() },
                payload: Payload::Inline(vec![u8::try_from(number).unwrap(); 60_000]),
                lends: false,
            };
            (number, Box::new(incoming))
        });
        Work::Group(Parts::of(count, calls.collect()).unwrap())
    }

    #[test]
    fn a_group_goes_to_its_worker_as_fast_as_that_takes_it() {
        const PARTS: u32 = 40;
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        ready(&pool, &sockets, 0);
        assert_eq!(pool.read(0), None);
        pool.assign(0, group(PARTS), u64::MAX).unwrap();
        assert!(pool.idle().is_none() && pool.unfed().next().is_some(), "more is to be sent");
        let mut buffer = vec![0; FRAME_MAX];
        let (mut came, mut brought) = (Vec::new(), Vec::new());
        for number in 0..PARTS {
            let far = sockets.0.borrow()[0].try_clone().unwrap();
            let received = seqpacket::receive(far.as_fd(), &mut buffer, Some(0)).unwrap();
            brought.push(received.descriptors.len());
            let frame = frame::decode(&buffer[..received.len]).unwrap();
            if number == 0 {
                let group = frame.open::<Assignment>().unwrap().group.unwrap();
                assert_eq!((group.expected, group.parts, group.number), (PARTS, PARTS, 0));
                came.push((0, 0));
            } else {
                let part = frame.open::<Part>().unwrap();
                came.push((part.number, part.connection));
            }
            pool.feed(0).unwrap();
        }
        assert_eq!(came, (0..PARTS).map(|number| (number, number % 2)).collect::<Vec<_>>());
        assert_eq!(brought.iter().sum::<usize>(), 2, "each connection once");
        assert!(pool.unfed().next().is_none());
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        assert!(!lost.unbegun && given(&lost).replies().count() == PARTS as usize);
    }

    #[test]
    fn a_worker_that_dies_before_it_has_all_parts_had_not_begun() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        ready(&pool, &sockets, 0);
        assert_eq!(pool.read(0), None);
        pool.assign(0, group(40), u64::MAX).unwrap();
        sockets.0.borrow_mut().clear();
        pool.feed(0).unwrap();
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        assert!(lost.unbegun && given(&lost).replies().count() == 40);
    }

    #[test]
    fn strangers_are_nobodys_workers() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        assert!(pool.remove(pid(77), Ending::Exited(0), 0).is_none());
    }

    fn one_call() -> Work {
        let Work::Group(parts) = group(1) else { panic!("no group") };
        Work::One(parts.first)
    }

    #[test]
    fn a_done_of_an_earlier_turn_ends_no_later_one() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        ready(&pool, &sockets, 0);
        assert_eq!(pool.read(0), None);
        pool.set_gate(true);
        let worker = || pool.board().slot(0).unwrap();
        let _anybody = worker().settle();
        assert!(worker().take(ConnectionId(3)) && !worker().run(CallId([7; 16]), 50));
        assert!(pool.idle().is_none() && !pool.at_rest());
        assert_eq!(pool.next_wakeup(), Some(50));
        assert!(worker().rest());
        sockets.say(0, &WorkerMessage::Done);
        pool.assign(0, one_call(), 60).unwrap();
        assert_eq!(pool.read(0), None);
        assert!(pool.idle().is_none() && pool.next_wakeup() == Some(60), "it has the second one");
        assert!(pool.board().slot(0).unwrap().rest());
        sockets.say(0, &WorkerMessage::Done);
        assert_eq!(pool.read(0), None);
        assert!(pool.idle() == Some(0) && pool.at_rest());
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        assert!(matches!(lost.doing, Doing::Nothing) && !lost.starting);
    }

    #[test]
    fn only_the_turn_whose_deadline_passed_is_killed_for_it() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        ready(&pool, &sockets, 0);
        assert_eq!(pool.read(0), None);
        pool.assign(0, one_call(), 10).unwrap();
        assert!(pool.board().slot(0).unwrap().rest(), "it was in time");
        pool.expire(11);
        pool.set_gate(true);
        let worker = pool.board().slot(0).unwrap();
        let _anybody = worker.settle();
        assert!(worker.take(ConnectionId(3)) && !worker.run(CallId([7; 16]), 20));
        pool.expire(19);
        assert_eq!(pool.read(0), None);
        pool.expire(20);
        assert!(!pool.board().slot(0).unwrap().rest(), "it is late");
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        let Doing::Took { took, expired: true } = lost.doing else { panic!("{lost:?}") };
        assert_eq!((took.id, took.connection), (CallId([7; 16]), ConnectionId(3)));
    }

    #[test]
    fn one_that_dies_while_it_reads_says_from_where() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0, Vec::new).unwrap();
        pool.set_gate(true);
        let worker = pool.board().slot(0).unwrap();
        let _anybody = worker.settle();
        assert!(worker.take(ConnectionId(9)));
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        assert!(matches!(lost.doing, Doing::Taking(ConnectionId(9))));
        pool.fork_due(0, Vec::new).unwrap();
        assert_eq!(pool.board().slot(0).unwrap().seen().phase(), Phase::Starting);
    }
}
