//! The workers of a sandbox: forked ahead, watched, replaced.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::modes::local::{LocalError, forward_frame};
use crate::sandbox::messages::{WORKER_MESSAGE_MAX, WorkerMessage};
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::watch::Watch;
use crate::wire::control;
use crate::wire::envelope::{Assignment, Request};

use super::handover::{self, Unsent};
use super::signals::Ending;
use super::work::{Reply, Work};

/// Wait before a worker that died without having served anything is replaced, in nanoseconds; doubles
/// with each such death in a row.
const BACKOFF_MIN_NS: u64 = 10_000_000;
/// Longest such wait in nanoseconds.
const BACKOFF_MAX_NS: u64 = 5_000_000_000;

/// Makes a worker: its pid and init's end of the socketpair. In the child it does not return.
pub trait Fork {
    /// Forks one.
    ///
    /// # Errors
    /// When the kernel refuses; it is tried again later.
    fn fork(&self) -> io::Result<(Pid, OwnedFd)>;
}

/// What a worker has to do.
#[derive(Debug)]
pub struct Running {
    /// Where the answer goes.
    pub reply: Reply,
    /// Where else it goes: to the callers of a group's other parts.
    pub others: Vec<Reply>,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// The deadline passed and the worker was killed for it.
    pub expired: bool,
}

impl Running {
    /// Everybody who waits for its end.
    pub fn replies(&self) -> impl Iterator<Item = &Reply> {
        iter::once(&self.reply).chain(&self.others)
    }
}

#[derive(Debug)]
enum State {
    /// Makes its first instance.
    Starting,
    Idle,
    Busy(Running),
}

#[derive(Debug)]
struct Worker {
    pid: Pid,
    socket: OwnedFd,
    state: State,
    /// Has answered a request, or been given one.
    proven: bool,
    /// Parts of its group that its socket had no room for yet.
    unsent: VecDeque<Unsent>,
}

#[derive(Debug)]
enum Slot {
    Taken(Worker),
    /// To be forked at this time.
    Empty {
        not_before: u64,
    },
}

/// What became of a worker.
#[derive(Debug)]
pub struct Lost {
    /// How it ended.
    pub ending: Ending,
    /// What it was doing.
    pub running: Option<Running>,
    /// It had not got all of that, so it had not begun.
    pub unbegun: bool,
    /// It had not even made its first instance.
    pub starting: bool,
}

/// All workers of one sandbox.
#[derive(Debug)]
pub struct Pool<F> {
    fork: F,
    slots: Vec<Slot>,
    /// Their sockets, under their numbers.
    watch: Watch,
    early_deaths: u32,
}

impl<F: Fork> Pool<F> {
    /// `count` workers, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn new(fork: F, count: usize) -> io::Result<Self> {
        let slots = (0..count.max(1)).map(|_| Slot::Empty { not_before: 0 }).collect();
        Ok(Self { fork, slots, watch: Watch::new()?, early_deaths: 0 })
    }

    /// Forks the workers whose time has come.
    ///
    /// # Errors
    /// The first refusal of the kernel; the worker is tried again after the backoff.
    pub fn fork_due(&mut self, now: u64) -> io::Result<()> {
        for (key, slot) in (0..).zip(&mut self.slots) {
            if !matches!(slot, Slot::Empty { not_before } if *not_before <= now) {
                continue;
            }
            let forked = self.fork.fork().and_then(|(pid, socket)| {
                // Unwatched it would never be given work; it ends with its socket.
                self.watch.add(socket.as_fd(), key)?;
                Ok((pid, socket))
            });
            match forked {
                Ok((pid, socket)) => {
                    let state = State::Starting;
                    let unsent = VecDeque::new();
                    *slot = Slot::Taken(Worker { pid, socket, state, proven: false, unsent });
                }
                Err(error) => {
                    self.early_deaths = self.early_deaths.saturating_add(1);
                    let not_before = now.saturating_add(backoff_ns(self.early_deaths));
                    *slot = Slot::Empty { not_before };
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn workers(&self) -> impl Iterator<Item = (usize, &Worker)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match slot {
            Slot::Taken(worker) => Some((index, worker)),
            Slot::Empty { .. } => None,
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
            .filter(|(_, worker)| !worker.unsent.is_empty())
            .map(|(index, worker)| (index, worker.socket.as_fd()))
    }

    /// Sends a worker what is left of its group, as much as its socket takes.
    ///
    /// # Errors
    /// When a part cannot be sent at all; the worker is killed for it.
    pub fn feed(&mut self, index: usize) -> Result<(), LocalError> {
        let Some(Slot::Taken(worker)) = self.slots.get_mut(index) else { return Ok(()) };
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
        let Some(Slot::Taken(worker)) = self.slots.get_mut(index) else { return None };
        let mut failed = None;
        let mut buffer = [0; WORKER_MESSAGE_MAX];
        // An ended worker is noticed by its exit, not by its socket.
        while let Ok(Some(received)) = seqpacket::try_receive(worker.socket.as_fd(), &mut buffer) {
            match control::decode::<WorkerMessage>(&buffer[..received.len]) {
                Ok(WorkerMessage::Ready | WorkerMessage::Done) => worker.state = State::Idle,
                Ok(WorkerMessage::StartFailed { message }) => failed = Some(message),
                // Our own fork of our own binary: cannot happen unless the guest broke out; not trusted on.
                Err(_malformed) => {
                    let _gone = kill(worker.pid, Signal::SIGKILL);
                }
            }
        }
        failed
    }

    /// True when every worker is there and has its first instance.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.workers().filter(|(_, worker)| !matches!(worker.state, State::Starting)).count()
            == self.slots.len()
    }

    /// A worker without work.
    #[must_use]
    pub fn idle(&self) -> Option<usize> {
        self.workers()
            .find(|(_, worker)| matches!(worker.state, State::Idle))
            .map(|(index, _)| index)
    }

    /// True when no worker has work.
    #[must_use]
    pub fn at_rest(&self) -> bool {
        !self.workers().any(|(_, worker)| matches!(worker.state, State::Busy(_)))
    }

    /// Hands work to an idle worker.
    ///
    /// # Errors
    /// Gives it back when the worker has just died ([`None`]) or the work cannot be sent.
    pub fn assign(
        &mut self,
        index: usize,
        work: Work,
        deadline: u64,
    ) -> Result<(), (Work, Option<LocalError>)> {
        let Some(Slot::Taken(worker)) = self.slots.get_mut(index) else {
            return Err((work, None));
        };
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
                worker.proven = true;
                worker.state = State::Busy(Running { reply, others, deadline, expired: false });
                worker.unsent = unsent;
                self.early_deaths = 0;
                // What does not go now is tried again when there is room, and then a fault is reported.
                self.feed(index).or(Ok(()))
            }
            Err(LocalError::Socket(SocketError::Closed)) => {
                // Its exit is on the way; until then nobody gives it anything.
                worker.state = State::Starting;
                Err((work, None))
            }
            Err(error) => Err((work, Some(error))),
        }
    }

    /// Kills workers whose requests are out of time; their exits follow.
    pub fn expire(&mut self, now: u64) {
        for slot in &mut self.slots {
            if let Slot::Taken(Worker { pid, state: State::Busy(running), .. }) = slot
                && running.deadline <= now
                && !running.expired
            {
                running.expired = true;
                let _gone = kill(*pid, Signal::SIGKILL);
            }
        }
    }

    /// Takes out a worker that ended; `None` when the pid is no worker's.
    pub fn remove(&mut self, pid: Pid, ending: Ending, now: u64) -> Option<Lost> {
        let index = self.workers().find(|(_, worker)| worker.pid == pid)?.0;
        // It may have said "done" with its last breath.
        let _failed = self.read(index);
        let proven = matches!(&self.slots[index], Slot::Taken(worker) if worker.proven);
        self.early_deaths = if proven { 0 } else { self.early_deaths.saturating_add(1) };
        let wait = if proven { 0 } else { backoff_ns(self.early_deaths) };
        let empty = Slot::Empty { not_before: now.saturating_add(wait) };
        let Slot::Taken(worker) = std::mem::replace(&mut self.slots[index], empty) else {
            return None;
        };
        self.watch.remove(worker.socket.as_fd());
        let starting = matches!(worker.state, State::Starting);
        let unbegun = !worker.unsent.is_empty();
        let running = match worker.state {
            State::Busy(running) => Some(running),
            State::Starting | State::Idle => None,
        };
        Some(Lost { ending, running, unbegun, starting })
    }

    /// Ends every worker and gives back what they were doing.
    pub fn kill_all(&mut self) -> Vec<Running> {
        let mut left = Vec::new();
        for slot in &mut self.slots {
            let empty = Slot::Empty { not_before: u64::MAX };
            if let Slot::Taken(worker) = std::mem::replace(slot, empty) {
                let _gone = kill(worker.pid, Signal::SIGKILL);
                if let State::Busy(running) = worker.state {
                    left.push(running);
                }
            }
        }
        left
    }

    /// When something is to be done without anybody saying so: a fork, a deadline.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        self.slots
            .iter()
            .filter_map(|slot| match slot {
                Slot::Empty { not_before } => Some(*not_before),
                Slot::Taken(Worker { state: State::Busy(running), .. }) if !running.expired => {
                    Some(running.deadline)
                }
                Slot::Taken(_) => None,
            })
            .min()
    }
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
        fn fork(&self) -> io::Result<(Pid, OwnedFd)> {
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
            pool.fork_due(now).unwrap();
            let lost = pool.remove(pid(number), Ending::Exited(1), now).unwrap();
            assert!(lost.starting && lost.running.is_none());
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
        pool.fork_due(0).unwrap();
        assert!(pool.idle().is_none() && !pool.complete());
        sockets.say(1, &WorkerMessage::Ready);
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
        pool.fork_due(0).unwrap();
        sockets.say(0, &WorkerMessage::Ready);
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
        assert!(!lost.unbegun && lost.running.unwrap().replies().count() == PARTS as usize);
    }

    #[test]
    fn a_worker_that_dies_before_it_has_all_parts_had_not_begun() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0).unwrap();
        sockets.say(0, &WorkerMessage::Ready);
        assert_eq!(pool.read(0), None);
        pool.assign(0, group(40), u64::MAX).unwrap();
        sockets.0.borrow_mut().clear();
        pool.feed(0).unwrap();
        let lost = pool.remove(pid(1), Ending::Exited(1), 0).unwrap();
        assert!(lost.unbegun && lost.running.unwrap().replies().count() == 40);
    }

    #[test]
    fn strangers_are_nobodys_workers() {
        let sockets = Sockets::default();
        let mut pool = Pool::new(&sockets, 1).unwrap();
        pool.fork_due(0).unwrap();
        assert!(pool.remove(pid(77), Ending::Exited(0), 0).is_none());
    }
}
