//! Waits for clocks and descriptors. Runs in a worker.

use std::os::fd::{AsFd as _, BorrowedFd};

use cwasi_host_functions::{GuestMemory, GuestPtr};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::stat::fstat;
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use nix::unistd::{Whence, lseek64};
use smallvec::SmallVec;

use crate::descriptors::{Found, OpenFile};
use crate::layout::{FileType, Record, check_room, put, put_u32, u32_of, u64_of};
use crate::process::now;
use crate::{Wasi, WasiErrno, WasiResult};

/// Most subscriptions of one call: each descriptor for reading and writing, and clocks.
const SUBSCRIPTIONS_MAX: u32 = 4096;
const SUBSCRIPTION_LEN: u32 = 48;
const EVENT_LEN: u32 = 32;
/// Subscriptions without an allocation.
const INLINE: usize = 4;

/// `eventtype`
const CLOCK: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
/// `subclockflags`
const ABSOLUTE: u32 = 1 << 0;
/// `eventrwflags`
const HANGUP: u16 = 1 << 0;

/// What a guest waits for.
#[derive(Clone, Copy, Debug)]
struct Subscription {
    /// The guest's own number.
    user_data: u64,
    wait: Wait,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    /// A time of the monotonic clock in nanoseconds.
    Until(u64),
    Read(u32),
    Write(u32),
}

/// Something to report: number of bytes and `eventrwflags`.
type Ready = (u64, u16);

impl Wasi {
    pub fn poll_oneoff(
        &mut self,
        memory: &mut impl GuestMemory,
        subscriptions: u32,
        events: u32,
        count: u32,
        count_out: u32,
    ) -> WasiResult {
        if count == 0 || count > SUBSCRIPTIONS_MAX {
            return Err(WasiErrno::INVAL);
        }
        check_room(memory, events, count * EVENT_LEN)?;
        check_room(memory, count_out, 4)?;
        let bytes = memory.slice(GuestPtr(subscriptions), count * SUBSCRIPTION_LEN)?;
        let records = bytes.chunks_exact(SUBSCRIPTION_LEN as usize);
        let subscriptions: SmallVec<[Subscription; INLINE]> =
            records.map(Subscription::read).collect::<WasiResult<_>>()?;
        let mut reported = 0;
        self.wait(&subscriptions, |subscription, (len, flags)| {
            let event = subscription.event(len, flags);
            put(memory, events + reported * EVENT_LEN, &event)?;
            reported += 1;
            Ok(())
        })?;
        put_u32(memory, count_out, reported)
    }

    /// Waits until at least one subscription has something to report.
    fn wait(
        &self,
        subscriptions: &[Subscription],
        mut report: impl FnMut(&Subscription, Ready) -> WasiResult,
    ) -> WasiResult {
        let mut polled: SmallVec<[PollFd<'_>; INLINE]> = SmallVec::new();
        let mut deadline = None;
        for subscription in subscriptions {
            match subscription.wait {
                Wait::Until(time) => {
                    deadline = Some(deadline.map_or(time, |first: u64| first.min(time)));
                }
                Wait::Read(fd) => {
                    polled.push(PollFd::new(self.readable(fd)?, PollFlags::POLLIN));
                }
                Wait::Write(fd) => {
                    polled.push(PollFd::new(self.writable(fd)?, PollFlags::POLLOUT));
                }
            }
        }
        loop {
            let left = match deadline {
                Some(time) => Some(time_spec(time.saturating_sub(monotonic()?))),
                None => None,
            };
            match ppoll(&mut polled, left, None) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if self.report(subscriptions, &polled, &mut report)? {
                return Ok(());
            }
        }
    }

    /// Reports what is ready. True if something is.
    fn report(
        &self,
        subscriptions: &[Subscription],
        polled: &[PollFd<'_>],
        report: &mut impl FnMut(&Subscription, Ready) -> WasiResult,
    ) -> WasiResult<bool> {
        let (time, mut polled, mut is_any) = (monotonic()?, polled.iter(), false);
        for subscription in subscriptions {
            let ready = match subscription.wait {
                Wait::Until(until) => (until <= time).then_some((0, 0)),
                Wait::Read(fd) => polled
                    .next()
                    .and_then(PollFd::revents)
                    .and_then(|events| (!events.is_empty()).then(|| self.readiness(fd, events))),
                Wait::Write(_) => polled
                    .next()
                    .and_then(PollFd::revents)
                    .and_then(|events| (!events.is_empty()).then(|| (1, hangup(events)))),
            };
            if let Some(ready) = ready {
                report(subscription, ready)?;
                is_any = true;
            }
        }
        Ok(is_any)
    }

    /// The process's descriptor of one that can be read.
    fn readable(&self, fd: u32) -> WasiResult<BorrowedFd<'_>> {
        match self.find(fd)? {
            Found::Stdio(stdio) if stdio.number == 0 => Ok(self.template.stdio(stdio.number)),
            Found::File(file) => Ok(file.fd.as_fd()),
            Found::Socket(socket) => Ok(socket.fd.as_fd()),
            Found::Stdio(_) | Found::Directory(_) => Err(WasiErrno::BADF),
        }
    }

    fn writable(&self, fd: u32) -> WasiResult<BorrowedFd<'_>> {
        match self.find(fd)? {
            Found::Stdio(stdio) if stdio.number != 0 => Ok(self.template.stdio(stdio.number)),
            Found::File(file) => Ok(file.fd.as_fd()),
            Found::Socket(socket) => Ok(socket.fd.as_fd()),
            Found::Stdio(_) | Found::Directory(_) => Err(WasiErrno::BADF),
        }
    }

    /// Bytes to read: of a file what is left, and of others at least 1.
    fn readiness(&self, fd: u32, events: PollFlags) -> Ready {
        match self.find(fd) {
            Ok(Found::File(file)) if file.kind == FileType::RegularFile => match left(file) {
                0 => (0, HANGUP),
                left => (left, hangup(events)),
            },
            _ => (1, hangup(events)),
        }
    }
}

/// Bytes of a file after its position.
fn left(file: &OpenFile) -> u64 {
    let size = fstat(&file.fd).map_or(0, |stat| stat.st_size);
    let position = lseek64(&file.fd, 0, Whence::SeekCur).unwrap_or_default();
    u64::try_from(size.saturating_sub(position)).unwrap_or_default()
}

fn hangup(events: PollFlags) -> u16 {
    if events.contains(PollFlags::POLLHUP) { HANGUP } else { 0 }
}

impl Subscription {
    fn read(record: &[u8]) -> WasiResult<Self> {
        let wait = match record.get(8) {
            Some(&CLOCK) => {
                let flags = u32_of(record, 40) & u32::from(u16::MAX);
                Wait::Until(until(u32_of(record, 16), u64_of(record, 24), flags)?)
            }
            Some(&READ) => Wait::Read(u32_of(record, 16)),
            Some(&WRITE) => Wait::Write(u32_of(record, 16)),
            _ => return Err(WasiErrno::INVAL),
        };
        Ok(Self { user_data: u64_of(record, 0), wait })
    }

    /// `event` without an error.
    fn event(&self, len: u64, flags: u16) -> [u8; EVENT_LEN as usize] {
        let kind = match self.wait {
            Wait::Until(_) => CLOCK,
            Wait::Read(_) => READ,
            Wait::Write(_) => WRITE,
        };
        Record::new()
            .with(0, self.user_data.to_le_bytes())
            .with(10, [kind])
            .with(16, len.to_le_bytes())
            .with(24, flags.to_le_bytes())
            .0
    }
}

/// The time of the monotonic clock when a clock reaches `timeout`.
fn until(clock: u32, timeout: u64, flags: u32) -> WasiResult<u64> {
    let own = match clock {
        0 => ClockId::CLOCK_REALTIME,
        1 => ClockId::CLOCK_MONOTONIC,
        _ => return Err(WasiErrno::INVAL),
    };
    match flags {
        0 => Ok(monotonic()?.saturating_add(timeout)),
        ABSOLUTE if own == ClockId::CLOCK_MONOTONIC => Ok(timeout),
        ABSOLUTE => Ok(monotonic()?.saturating_add(timeout.saturating_sub(now(own)?))),
        _ => Err(WasiErrno::INVAL),
    }
}

fn monotonic() -> WasiResult<u64> {
    now(ClockId::CLOCK_MONOTONIC)
}

fn time_spec(nanoseconds: u64) -> TimeSpec {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    TimeSpec::new(number(nanoseconds / 1_000_000_000), number(nanoseconds % 1_000_000_000))
}
