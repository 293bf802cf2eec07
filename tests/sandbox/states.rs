//! A process of a call is stopped or killed, in each of its states: the others' calls are answered as long as a worker
//! is free, each call ends once, and a death ends the calls of its worker only.

use std::os::fd::AsFd;

use cwasi_abi::Errno;
use cwasi_sandbox::worker_table::{Phase, SlotState};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::{Entry, FunctionLaunch, Role};
use cwasi_wire::frame::FRAME_MAX;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::direct::{Stopped, until_init_sleeps};
use crate::fixture::{Fixture, WAIT, eventually};
use crate::function::{Caller, Function, launch};
use crate::guests::guests;

const WORKERS: u32 = 4;
/// Deadline of calls that are answered, in milliseconds.
const LONG_MS: u64 = 20_000;
/// Deadline of a call that its worker never ends.
const SHORT_MS: u64 = 4000;

/// Who is stopped or killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// One that has requests out and reads no answers.
    Caller,
    Init,
    /// The worker that sleeps on the connections.
    Leader,
    /// One that sleeps until it is woken to lead.
    Follower,
    /// One that runs a request.
    Running,
}

/// What init does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// It checks every millisecond.
    InitLooks,
    /// It sleeps until it is woken.
    InitSleeps,
}

const WHO: [Who; 5] = [Who::Caller, Who::Init, Who::Leader, Who::Follower, Who::Running];
const WHEN: [When; 2] = [When::InitLooks, When::InitSleeps];

/// A function with callers, one of whose processes is `who`.
struct Scene<'a> {
    function: Function<'a>,
    callers: Vec<Caller>,
    /// Its worker is `who`, or it is `who`.
    victim: Caller,
    /// Numbers of the victim's calls that have not ended.
    out: Vec<u64>,
}

impl<'a> Scene<'a> {
    fn new(fixture: &'a Fixture, name: &str, who: Who, when: When) -> Self {
        let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
        let launch = FunctionLaunch { concurrency: WORKERS, queue: 16, ..reactor };
        let function = Function::start(fixture, name, launch);
        let callers = (0..3).map(|_| function.caller()).collect();
        let victim = function.caller();
        let mut scene = Self { function, callers, victim, out: Vec::new() };
        // All are connected, and every worker knows them.
        assert_eq!(scene.victim.call(b"c"), Ok(b"1".to_vec()));
        scene.calls_are_answered("at first");
        match who {
            Who::Running => scene.out.push(scene.victim.send(b"l", SHORT_MS)),
            Who::Caller => scene.out.extend((0..8).map(|_| scene.victim.send(b"e", LONG_MS))),
            Who::Init | Who::Leader | Who::Follower => {}
        }
        if who == Who::Running {
            scene.function.until_busy(1);
        }
        match when {
            When::InitSleeps if who != Who::Running => until_init_sleeps(&scene.function),
            When::InitSleeps | When::InitLooks => scene.calls_are_answered("just before"),
        }
        scene
    }

    fn calls_are_answered(&mut self, when: &str) {
        for _ in 0..3 {
            let callers = self.callers.iter_mut();
            let sent: Vec<_> = callers.map(|caller| caller.send(b"c", LONG_MS)).collect();
            for (caller, number) in self.callers.iter().zip(sent) {
                assert_eq!(caller.receive(), (number, Ok(b"1".to_vec())), "{when}");
            }
        }
    }

    /// The process that `who` is; none for a caller, which is this one.
    fn pid(&self, who: Who) -> Option<Pid> {
        let function = &self.function;
        let worker = |index: usize| Pid::from_raw(function.workers()[index]);
        match who {
            Who::Caller => None,
            Who::Init => Some(function.container.pid),
            Who::Leader => {
                function.until_idle(WORKERS as usize);
                Some(worker(eventually("a leader", || function.leader())))
            }
            Who::Follower => {
                function.until_idle(WORKERS as usize);
                Some(worker(eventually("a follower", || function.followers().first().copied())))
            }
            Who::Running => Some(worker(eventually("only the victim's call runs", || {
                let table = function.table();
                let busy = |state: &&SlotState| state.phase() == Phase::Running;
                let is_only = table.iter().filter(busy).count() == 1;
                is_only.then(|| table.iter().position(|state| busy(&state))).flatten()
            }))),
        }
    }

    /// The victim's calls end, each once.
    fn the_victims_calls_end(&mut self, expected: &Result<Vec<u8>, Errno>) {
        let mut out = std::mem::take(&mut self.out);
        while !out.is_empty() {
            let (ended, outcome) = self.victim.receive();
            let outcome = outcome.map_err(|(code, _)| Errno::from_code(code).unwrap());
            assert_eq!(&outcome, expected);
            // Several workers answer.
            let index = out.iter().position(|number| *number == ended).expect("it ends once");
            out.swap_remove(index);
        }
        let more =
            seqpacket::wait_any(&[self.victim.connection.as_fd()], None, Some(Deadline::PASSED))
                .unwrap();
        assert!(more.is_empty(), "a call ended twice");
    }
}

fn answered() -> Result<Vec<u8>, Errno> {
    Ok(b"e".to_vec())
}

#[test]
fn a_stopped_process_delays_its_own_calls_only() {
    let fixture = Fixture::new();
    for (number, who) in WHO.into_iter().enumerate() {
        for when in WHEN {
            let case = format!("{who:?} {when:?}");
            let mut scene = Scene::new(&fixture, &format!("stop{number}{}", when as u8), who, when);
            let stopped = scene.pid(who).map(Stopped::new);
            scene.calls_are_answered(&case);
            // Its deadline holds although it is stopped.
            if who == Who::Running {
                scene.the_victims_calls_end(&Err(Errno::Timeout));
            }
            drop(stopped);
            scene.the_victims_calls_end(&answered());
            scene.calls_are_answered(&case);
            scene.function.end();
        }
    }
}

#[test]
fn a_killed_process_ends_its_own_calls_only() {
    let fixture = Fixture::new();
    for (number, who) in WHO.into_iter().enumerate() {
        for when in WHEN {
            let case = format!("{who:?} {when:?}");
            let mut scene = Scene::new(&fixture, &format!("kill{number}{}", when as u8), who, when);
            let killed = scene.pid(who);
            match killed {
                Some(pid) => kill(pid, Signal::SIGKILL).unwrap(),
                None => scene.victim = scene.function.caller(),
            }
            if who == Who::Init {
                // All of the function ends with it, and every connection.
                let mut buffer = vec![0; FRAME_MAX];
                let until = Deadline::after(WAIT);
                for caller in &scene.callers {
                    let end =
                        seqpacket::receive(caller.connection.as_fd(), &mut buffer, Some(until));
                    assert!(matches!(end, Err(SocketError::Closed)), "{case}: {end:?}");
                }
                scene.function.container.wait();
                scene.function.container.delete();
                continue;
            }
            // Init could give work to a worker that is dying.
            eventually("the killed process gone", || {
                let gone = |pid: Pid| !scene.function.workers().contains(&pid.as_raw());
                killed.is_none_or(gone).then_some(())
            });
            scene.calls_are_answered(&case);
            match who {
                Who::Running => scene.the_victims_calls_end(&Err(Errno::Broken)),
                _ => scene.out.clear(),
            }
            eventually("another worker", || {
                (scene.function.workers().len() == WORKERS as usize).then_some(())
            });
            scene.calls_are_answered(&case);
            scene.function.end();
        }
    }
}

/// Workers tell a sleeping init of each request, and do not wait for it to listen.
#[test]
fn calls_go_on_for_long_while_init_is_stopped() {
    const CALLS: usize = 600;
    let fixture = Fixture::new();
    let mut scene = Scene::new(&fixture, "long", Who::Init, When::InitSleeps);
    let stopped = scene.pid(Who::Init).map(Stopped::new);
    for _ in 0..CALLS {
        assert_eq!(scene.victim.call(b"c"), Ok(b"1".to_vec()));
    }
    drop(stopped);
    scene.calls_are_answered("init goes on");
    scene.function.end();
}
