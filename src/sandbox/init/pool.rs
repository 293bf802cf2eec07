//! The workers of a sandbox: forked ahead, watched, replaced.
#![expect(unsafe_code, reason = "a forked child has only a part of the shared pages")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::modes::Payload;
use crate::modes::local::{Line, LocalError, forward_frame, open_frame, send_frame};
use crate::sandbox::board::{Board, Phase, Seen, Slot};
use crate::sandbox::messages::{WorkerMessage, is_frame};
use crate::sandbox::worker::Seat;
use crate::sys::seqpacket::{self, SocketError};
use crate::sys::wakeup::Wakeup;
use crate::sys::watch::Watch;
use crate::wire::control;
use crate::wire::envelope::{self, Assignment, Request, Undelivered};
use crate::wire::frame::FRAME_MAX;

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
    /// A signal stopped it; it does nothing until another one continues it.
    stopped: bool,
    /// What it was given and has not said to be done.
    running: Option<Running>,
    /// The request that it took itself, and until when it may run, as init first saw it.
    taken: Option<(Seen, u64)>,
    /// Parts of its group that its socket had no room for yet.
    unsent: VecDeque<Unsent>,
}

impl Worker {
    /// Notes what its slot says about a request that it took itself, once: what it says later changes nothing.
    fn note_taken(&mut self, slot: Slot<'_>, latest: Option<u64>) {
        let took = slot.took().filter(|(seen, _)| seen.phase() == Phase::Running);
        self.taken = took.map(|(turn, took)| match self.taken {
            Some((noted, deadline)) if noted == turn => (turn, deadline),
            _ => (turn, latest.map_or(took.deadline, |latest| latest.min(took.deadline))),
        });
    }

    /// Whether it would begin at once, or when its instance is there, what it is given now.
    const fn can_begin(&self, seen: Seen) -> bool {
        self.started && !self.stopped && self.running.is_none() && seen.is_free()
    }
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
    /// Wakes a follower.
    wakeup: Wakeup,
    /// Their sockets, under their numbers.
    watch: Watch,
    buffer: Vec<u8>,
    early_deaths: u32,
    /// The user knows that workers make instances anew for each request.
    not_renewed_told: bool,
}

/// What a worker said.
#[derive(Debug, Default)]
pub struct Said {
    /// It could not make its first instance.
    pub failed: Option<String>,
    /// Answers for which their callers have no room.
    pub undelivered: Vec<(Undelivered, Payload)>,
    /// It has its first instance.
    ready: bool,
    /// It makes instances anew for each request, and why.
    not_renewed: Option<String>,
}

/// What no worker of ours says.
struct Malformed;

impl Said {
    fn take(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), Malformed> {
        if is_frame(message) {
            let opened = open_frame(message, descriptors, 0, u64::MAX).map_err(|_| Malformed)?;
            self.undelivered.push((opened.envelope, opened.payload));
            return Ok(());
        }
        match control::decode(message).map_err(|_| Malformed)? {
            WorkerMessage::Ready => self.ready = true,
            WorkerMessage::Done | WorkerMessage::Took => {}
            WorkerMessage::StartFailed { message } => self.failed = Some(message),
            WorkerMessage::NotRenewed { message } => self.not_renewed = Some(message),
        }
        Ok(())
    }
}

impl<F: Fork> Pool<F> {
    /// `count` workers, to be forked by [`Self::fork_due`].
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn new(fork: F, count: usize) -> io::Result<Self> {
        let places: Vec<_> = (0..count.max(1)).map(|_| Place::Empty { not_before: 0 }).collect();
        let board = Board::new(places.len())?;
        let (wakeup, watch) = (Wakeup::new()?, Watch::new()?);
        let (buffer, not_renewed_told) = (vec![0; FRAME_MAX], false);
        Ok(Self { fork, places, board, wakeup, watch, buffer, early_deaths: 0, not_renewed_told })
    }

    /// What all of them see.
    pub const fn board(&self) -> &Board {
        &self.board
    }

    /// Forks the workers whose time has come; those that read do so from `lines`.
    ///
    /// # Errors
    /// The first refusal of the kernel; the worker is tried again after the backoff.
    pub fn fork_due(&mut self, now: u64, lines: impl Fn() -> Vec<Line>) -> io::Result<()> {
        for index in 0..self.places.len() {
            if !matches!(self.places[index], Place::Empty { not_before } if not_before <= now) {
                continue;
            }
            let lines = if index < self.board.readers() { lines() } else { Vec::new() };
            match self.fork_at(index, lines) {
                Ok((pid, socket)) => {
                    self.places[index] = Place::Taken(Worker {
                        pid,
                        socket,
                        started: false,
                        stopped: false,
                        running: None,
                        taken: None,
                        unsent: VecDeque::new(),
                    });
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
        let seat = Seat { slot, lines, wakeup: self.wakeup.share()?.into() };
        // SAFETY:
        // - the child has a seat with this slot and never gets to the board or another slot (`Fork::fork`).
        let forked = unsafe { self.board.pages().pass_on(index, || self.fork.fork(seat)) };
        let (pid, socket) = forked??;
        // Unwatched it would never be given work; it ends with its socket.
        self.watch.add(socket.as_fd(), u64::try_from(index).unwrap_or(u64::MAX))?;
        Ok((pid, socket))
    }

    /// Those that read from connections.
    fn readers(&self) -> impl Iterator<Item = (&Worker, Slot<'_>)> {
        self.workers().filter(|(.., slot)| slot.reads()).map(|(_, worker, slot)| (worker, slot))
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

    /// Reads what a worker says.
    pub fn read(&mut self, index: usize) -> Said {
        let mut said = Said::default();
        let Some(slot) = self.board.slot(index) else { return said };
        let Some(Place::Taken(worker)) = self.places.get_mut(index) else { return said };
        let buffer = &mut self.buffer;
        // An ended worker is noticed by its exit, not by its socket.
        while let Ok(Some(received)) = seqpacket::try_receive(worker.socket.as_fd(), buffer) {
            let message = &buffer[..received.len];
            // Our own fork of our own binary: cannot happen unless the guest broke out; not trusted on.
            if said.take(message, received.descriptors).is_err() {
                let _gone = kill(worker.pid, Signal::SIGKILL);
            }
        }
        worker.started |= said.ready;
        if let Some(message) = said.not_renewed.take()
            && !std::mem::replace(&mut self.not_renewed_told, true)
        {
            crate::sandbox::stderr::try_line(&message);
        }
        // A message may be about an earlier turn; the slot says whether this one is over. It is asked after the last
        // message was read: there may be no other.
        let seen = slot.seen();
        if worker.running.as_ref().is_some_and(|running| running.is_over(seen)) {
            worker.running = None;
        }
        said
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
            if worker.can_begin(seen) {
                if seen.phase() != Phase::Making {
                    return Some(index);
                }
                making.get_or_insert(index);
            }
        }
        making
    }

    /// True when a worker that reads from connections has nothing to do, or is still making its instance.
    #[must_use]
    pub fn has_free_reader(&self) -> bool {
        self.readers().any(|(worker, slot)| worker.can_begin(slot.seen()))
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
            connection: first.connection.0,
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

    /// Lets workers read from a connection; false when not all of them can be told now.
    pub fn share(&self, line: &Line) -> bool {
        let envelope = envelope::Line {
            connection: line.id.0,
            caller: line.caller.clone(),
            lends: line.lends,
            ..envelope::Line::default()
        };
        let told = self.readers().filter(|(worker, _)| {
            let (socket, extra) = (worker.socket.as_fd(), [line.fd.as_fd()]);
            match send_frame(socket, &envelope, b"", &extra, Some(0)) {
                // Its exit is on the way.
                Ok(()) | Err(LocalError::Socket(SocketError::Closed)) => true,
                Err(_no_room) => false,
            }
        });
        told.count() == self.readers().count()
    }

    /// Workers at these places have had the same request for long: another one leads.
    pub fn note_long(&self, places: impl Iterator<Item = usize>) {
        if self.board.control().set_long(places) {
            self.wakeup.wake_one();
        }
    }

    /// The leader does not read from the connections: another worker is to lead.
    pub fn depose_leader(&self) {
        if self.board.control().depose_leader() {
            self.wakeup.wake_one();
        }
    }

    /// A signal stopped or continued a process: a stopped worker gets no work, and another one leads.
    pub fn set_stopped(&mut self, pid: Pid, stopped: bool) {
        let workers = self.places.iter_mut().enumerate();
        let place = workers.filter_map(|(index, place)| match place {
            Place::Taken(worker) if worker.pid == pid => Some((index, worker)),
            _ => None,
        });
        for (index, worker) in place {
            worker.stopped = stopped;
            if stopped && self.board.slot(index).is_some_and(|slot| slot.lose_lead()) {
                self.wakeup.wake_one();
            }
        }
    }

    /// A connection has ended: wakes its readers that are followers, which look before they sleep again.
    pub fn unshare(&self) {
        self.readers().for_each(|(worker, _)| look_again(worker));
    }

    /// Workers read from connections, or only init does.
    pub fn set_gate(&self, open: bool) {
        if self.board.control().set_gate(open) && open {
            let parked = |slot: &Slot<'_>| slot.seen().phase() == Phase::Parked;
            self.readers()
                .filter(|(_, slot)| parked(slot))
                .for_each(|(worker, _)| look_again(worker));
        }
    }

    /// Kills workers whose requests are out of time; their exits follow. What a worker took itself may run until the time
    /// that it first said, and no longer than `latest`.
    pub fn expire(&mut self, now: u64, latest: Option<u64>) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let (Place::Taken(worker), Some(slot)) = (place, self.board.slot(index)) else {
                continue;
            };
            worker.note_taken(slot, latest);
            let over = match (&mut worker.running, worker.taken) {
                (Some(running), _) if running.expired || running.deadline > now => false,
                (Some(running), _) => {
                    running.expired = slot.expire(running.turn);
                    running.expired
                }
                (None, Some((turn, deadline))) => deadline <= now && slot.expire(turn),
                (None, None) => false,
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
        let undelivered = self.read(index).undelivered;
        let slot = self.board.slot(index)?;
        let place = self.places.get_mut(index)?;
        let Place::Taken(worker) = place else { return None };
        let unbegun = !worker.unsent.is_empty();
        let starting = !worker.started;
        let doing = Doing::of(worker.running.take(), slot);
        let proven = slot.had_turns();
        // Its successor may be long in coming.
        if slot.vacate() {
            self.wakeup.wake_one();
        }
        self.watch.remove(worker.socket.as_fd());
        self.early_deaths = if proven { 0 } else { self.early_deaths.saturating_add(1) };
        let wait = if proven { 0 } else { backoff_ns(self.early_deaths) };
        *place = Place::Empty { not_before: now.saturating_add(wait) };
        Some(Lost { ending, doing, unbegun, starting, undelivered })
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
            None => {
                let (turn, deadline) = worker.taken?;
                (slot.seen() == turn).then_some(deadline)
            }
        });
        forks.chain(deadlines).min()
    }
}

/// Wakes a worker that waits for init, or is a follower.
fn look_again(worker: &Worker) {
    // One without room for it has other messages to be woken by; one that is gone is noticed by its exit.
    let _unsent = send_frame(worker.socket.as_fd(), &envelope::Line::default(), b"", &[], Some(0));
}

fn backoff_ns(deaths: u32) -> u64 {
    let doublings = deaths.saturating_sub(1).min(16);
    (BACKOFF_MIN_NS << doublings).min(BACKOFF_MAX_NS)
}

#[cfg(test)]
mod tests;
