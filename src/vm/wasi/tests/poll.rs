//! Waiting.

use std::io::{Read as _, Write as _};

use super::*;

const SUBSCRIPTIONS: u32 = 2048;
const EVENTS: u32 = 4096;
const MILLISECOND: u64 = 1_000_000;

/// A subscription with the user data `1000 + index`.
enum Wait {
    /// Clock, time and flags.
    Clock(u32, u64, u16),
    Read(u32),
    Write(u32),
}

/// An event: index of the subscription, type, bytes, flags.
type Event = (u64, u8, u64, u32);

fn poll(guest: &mut Guest, waits: &[Wait]) -> WasiResult<Vec<Event>> {
    for (index, wait) in (0..).zip(waits) {
        let at = SUBSCRIPTIONS + index * 48;
        guest.memory.put(at, &[0; 48]);
        guest.memory.put(at, &(1000 + u64::from(index)).to_le_bytes());
        match wait {
            Wait::Clock(clock, time, flags) => {
                guest.memory.words(at + 16, &[*clock]);
                guest.memory.put(at + 24, &time.to_le_bytes());
                guest.memory.put(at + 40, &flags.to_le_bytes());
            }
            Wait::Read(fd) => guest.memory.words(at + 8, &[1, 0, *fd]),
            Wait::Write(fd) => guest.memory.words(at + 8, &[2, 0, *fd]),
        }
    }
    let count = u32::try_from(waits.len()).unwrap();
    guest.wasi.poll_oneoff(&mut guest.memory, SUBSCRIPTIONS, EVENTS, count, OUT)?;
    let event = |index: u32| {
        let at = EVENTS + index * 32;
        let memory = &guest.memory;
        let (error, kind) = (memory.u32_at(at + 8) & 0xffff, memory.u32_at(at + 8) >> 16);
        assert_eq!(error, 0);
        let kind = u8::try_from(kind).unwrap();
        (memory.u64_at(at) - 1000, kind, memory.u64_at(at + 16), memory.u32_at(at + 24))
    };
    Ok((0..guest.memory.u32_at(OUT)).map(event).collect())
}

fn time(guest: &mut Guest, clock: u32) -> u64 {
    guest.wasi.clock_time_get(&mut guest.memory, clock, 0, OUT).unwrap();
    guest.memory.u64_at(OUT)
}

#[test]
fn clocks_wake_in_their_time() {
    let mut guest = Guest::new();
    for clock in [0, 1] {
        for absolute in [false, true] {
            let before = time(&mut guest, clock);
            let start = if absolute { before } else { 0 };
            let wait = [
                Wait::Clock(clock, start + 3_600_000 * MILLISECOND, absolute.into()),
                Wait::Clock(clock, start + 5 * MILLISECOND, absolute.into()),
            ];
            assert_eq!(poll(&mut guest, &wait), Ok(vec![(1, 0, 0, 0)]));
            assert!(time(&mut guest, clock) >= before + 5 * MILLISECOND, "{clock} {absolute}");
        }
        let past = [Wait::Clock(clock, 1, 1), Wait::Clock(clock, 0, 0)];
        assert_eq!(poll(&mut guest, &past).unwrap().len(), 2);
    }
    assert_eq!(poll(&mut guest, &[Wait::Clock(2, 0, 0)]), Err(WasiErrno::INVAL));
    assert_eq!(poll(&mut guest, &[Wait::Clock(1, 0, 2)]), Err(WasiErrno::INVAL));
}

#[test]
fn files_are_always_ready() {
    let mut guest = Guest::new();
    guest.file("file", "text");
    guest.file("empty", "");
    let [file, empty] = ["file", "empty"].map(|name| guest.open(name, 0, READ).unwrap());
    let writer = guest.open("file", 0, WRITE).unwrap();
    guest.seek(file, 1, 0).unwrap();
    let waits = [
        Wait::Read(file),
        Wait::Clock(1, 3_600_000 * MILLISECOND, 0),
        Wait::Write(writer),
        Wait::Read(empty),
    ];
    let events = [(0, 1, 3, 0), (2, 2, 1, 0), (3, 1, 0, 1)];
    assert_eq!(poll(&mut guest, &waits), Ok(events.to_vec()));
}

#[test]
fn pipes_are_ready_when_they_have_bytes_or_room() {
    let (stdin, mut writer) = std::io::pipe().unwrap();
    let (mut reader, stdout) = std::io::pipe().unwrap();
    let mut guest = Guest::with(None, [Some(stdin.into()), Some(stdout.into()), None]);
    let soon = || Wait::Clock(1, MILLISECOND, 0);
    assert_eq!(poll(&mut guest, &[Wait::Read(0), soon()]), Ok(vec![(1, 0, 0, 0)]));
    assert_eq!(poll(&mut guest, &[Wait::Write(1)]), Ok(vec![(0, 2, 1, 0)]));
    writer.write_all(b"x").unwrap();
    assert_eq!(poll(&mut guest, &[soon(), Wait::Read(0)]).unwrap().pop(), Some((1, 1, 1, 0)));
    drop(writer);
    guest.read(0, 1).unwrap();
    assert_eq!(poll(&mut guest, &[Wait::Read(0)]), Ok(vec![(0, 1, 1, 1)]), "its end");
    guest.wasi.fd_fdstat_set_flags(&mut guest.memory, 1, NONBLOCK).unwrap();
    while guest.write(1, &[0; 4096]).is_ok() {}
    assert_eq!(poll(&mut guest, &[Wait::Write(1), soon()]), Ok(vec![(1, 0, 0, 0)]));
    reader.read_exact(&mut [0; 8192]).unwrap();
    assert_eq!(poll(&mut guest, &[Wait::Write(1)]), Ok(vec![(0, 2, 1, 0)]));
}

#[test]
fn what_cannot_be_waited_for_is_refused() {
    let mut guest = Guest::new();
    assert_eq!(poll(&mut guest, &[]), Err(WasiErrno::INVAL));
    for wait in [Wait::Read(DATA), Wait::Read(99), Wait::Write(0), Wait::Read(1), Wait::Write(99)] {
        let waits = [Wait::Clock(1, 0, 0), wait];
        assert_eq!(poll(&mut guest, &waits), Err(WasiErrno::BADF));
    }
    let memory = &mut guest.memory;
    let mut poll = |subscriptions, events, count| {
        guest.wasi.poll_oneoff(memory, subscriptions, events, count, OUT)
    };
    assert_eq!(poll(SUBSCRIPTIONS, u32::MAX, 1), Err(WasiErrno::FAULT));
    assert_eq!(poll(u32::MAX, EVENTS, 1), Err(WasiErrno::FAULT));
    assert_eq!(poll(SUBSCRIPTIONS, EVENTS, 4096), Err(WasiErrno::FAULT));
    assert_eq!(poll(SUBSCRIPTIONS, EVENTS, 4097), Err(WasiErrno::INVAL));
    guest.memory.put(SUBSCRIPTIONS + 8, &[3]);
    let kind = guest.wasi.poll_oneoff(&mut guest.memory, SUBSCRIPTIONS, EVENTS, 1, OUT);
    assert_eq!(kind, Err(WasiErrno::INVAL));
}

#[test]
fn events_may_overwrite_their_subscriptions() {
    let mut guest = Guest::new();
    guest.memory.put(SUBSCRIPTIONS, &[0; 96]);
    guest.memory.words(SUBSCRIPTIONS, &[7]);
    guest.memory.words(SUBSCRIPTIONS + 48, &[8]);
    let memory = &mut guest.memory;
    guest.wasi.poll_oneoff(memory, SUBSCRIPTIONS, SUBSCRIPTIONS, 2, OUT).unwrap();
    let data = [0, 32].map(|at| memory.u64_at(SUBSCRIPTIONS + at));
    assert_eq!((memory.u32_at(OUT), data), (2, [7, 8]));
}
