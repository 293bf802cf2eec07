//! A primary of the fault suite: calls `soak-callee`s for a while, one by one and many at a time, with payloads that go
//! in a frame, in a large frame and in shared memory, and keeps an account of each call.
//!
//! Usage: `soak-caller ACCOUNT FIRST SECONDS TARGET…`: numbers its calls from FIRST on, and appends to the file ACCOUNT
//! `s NUMBER` before a call is sent, `e NUMBER ERRNO TEXT` when it has ended, and `done` at its own end. Each is one
//! append, so the account stays when this worker is killed.
//!
//! Runs inside a guest.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, Instant};

use cwasi::{CallError, Region, Response};

/// Errno that the account has for an answer with other bytes than were sent.
const WRONG_ANSWER: i32 = 99;
/// Most calls of one fan-out, and how many of them are under way.
const FAN_MAX: usize = 40;
const FAN_LIMIT: usize = 24;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [account, first, seconds, targets @ ..] = args.as_slice() else {
        panic!("usage: soak-caller ACCOUNT FIRST SECONDS TARGET…");
    };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let file = OpenOptions::new().create(true).append(true).open(account).expect("an account");
    let mut caller = Caller {
        account: RefCell::new(file),
        targets,
        next: number(first),
        random: Random(number(first)),
    };
    let end = Instant::now() + Duration::from_secs(number(seconds));
    while Instant::now() < end {
        caller.step();
    }
    caller.write("done");
}

struct Caller<'a> {
    account: RefCell<File>,
    targets: &'a [String],
    next: u64,
    random: Random,
}

impl Caller<'_> {
    fn step(&mut self) {
        match self.random.below(100) {
            0..70 => self.one(8, 1024),
            70..85 => self.one(4 << 10, 60 << 10),
            85..92 => self.one(100_000, 400_000),
            92..96 => self.in_place(100_000, 400_000),
            _ => self.fan_out(),
        }
    }

    fn write(&self, line: &str) {
        let mut file = self.account.borrow_mut();
        file.write_all(format!("{line}\n").as_bytes()).expect("the account takes it");
    }

    fn sent(&self, number: u64) {
        self.write(&format!("s {number}"));
    }

    fn ended(&self, number: u64, end: Result<&[u8], &CallError>, payload: &[u8]) {
        match end {
            Ok(answer) if answer == payload => self.write(&format!("e {number} 0 ok")),
            Ok(_) => self.write(&format!("e {number} {WRONG_ANSWER} other bytes came back")),
            Err(error) => {
                let text = error.to_string().replace('\n', " ");
                self.write(&format!("e {number} {} {text}", error.kind().code()));
            }
        }
    }

    /// The next call: its target, its number and its payload.
    fn prepare(&mut self, least: usize, most: usize) -> (String, u64, Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let target = self.targets[self.random.below(self.targets.len())].clone();
        let mut payload = number.to_le_bytes().to_vec();
        let len = least + self.random.below(most - least);
        payload.extend((payload.len()..len).map(|at| pattern(number, at)));
        (target, number, payload)
    }

    fn one(&mut self, least: usize, most: usize) {
        let (target, number, payload) = self.prepare(least, most);
        self.sent(number);
        let end = cwasi::call(&target, &payload);
        self.ended(number, end.as_deref(), &payload);
    }

    fn in_place(&mut self, least: usize, most: usize) {
        let (target, number, payload) = self.prepare(least, most);
        let mut region = Region::with_capacity(payload.len());
        region.write_all(&payload).expect("it has room");
        let region = region.seal();
        self.sent(number);
        let end: Result<Response, CallError> = cwasi::call_in_place(&target, &region);
        self.ended(number, end.as_deref(), &payload);
    }

    fn fan_out(&mut self) {
        let count = 2 + self.random.below(FAN_MAX - 1);
        let calls: Vec<_> = (0..count)
            .map(|_| {
                if self.random.below(5) == 0 {
                    self.prepare(8_000, 30_000)
                } else {
                    self.prepare(8, 512)
                }
            })
            .collect();
        let started = calls.iter().map(|(target, number, payload)| {
            self.sent(*number);
            (target, payload)
        });
        for (place, end) in cwasi::fan_out(started).limit(FAN_LIMIT).as_completed() {
            let (_, number, payload) = &calls[place];
            self.ended(*number, end.as_deref(), payload);
        }
    }
}

/// As `soak-callee` has it.
fn pattern(number: u64, at: usize) -> u8 {
    (number as usize).wrapping_mul(31).wrapping_add(at ^ (at >> 8)).to_le_bytes()[0]
}

/// Splitmix64: the same calls for the same first number.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}
