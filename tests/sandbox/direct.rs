//! Workers take requests from their callers themselves: whatever they do, and whenever they die, every call has one
//! end, bounds hold, and nothing is kept of connections that have ended.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_sandbox::worker_table::READERS_MAX;
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket;
use cwasi_wire::control::{Entry, FunctionLaunch, Role};
use cwasi_wire::envelope::{Hello, Request, Response};
use cwasi_wire::frame::FRAME_MAX;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{Fixture, WAIT, descriptors_of, descriptors_of_living, eventually};
use crate::frames::{receive_frame, send_frame};
use crate::function::{Caller, Function, identity, launch};
use crate::guests::guests;
use crate::secondary::{call as large_call, idle_descriptors_len};

/// Longest deadline of a call in milliseconds.
const LONG_MS: u64 = 20_000;

fn workers(concurrency: u32, queue: u32) -> FunctionLaunch {
    let reactor = launch(Role::Secondary, &guests().reactor, Entry::Reactor);
    FunctionLaunch { concurrency, queue, ..reactor }
}

fn errno(outcome: Result<Vec<u8>, (i32, String)>) -> Errno {
    Errno::from_code(outcome.unwrap_err().0).unwrap()
}

/// Kills the one worker, whatever it does.
fn kill_worker(function: &Function<'_>) {
    kill(Pid::from_raw(function.workers()[0]), Signal::SIGKILL).unwrap();
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Answered,
    Broken,
    /// The connection ended before the call did.
    Cut,
}

/// One call of `payload`, over a connection that is made again when it was cut.
fn call(connection: &mut Option<Caller>, receiver: &Path, payload: &[u8]) -> Ended {
    let caller = connection.get_or_insert_with(|| {
        let connection = seqpacket::connect_to(receiver).unwrap();
        let hello = Hello::of(&identity("tester"), "", "i");
        send_frame(connection.as_fd(), &hello, b"", None).unwrap();
        Caller::over(connection)
    });
    let number = caller.next_number();
    let request = Request {
        call_id: caller.id(number),
        remaining_us: LONG_MS * 1000,
        attempt: 1,
        ..Request::default()
    };
    let mut buffer = vec![0; FRAME_MAX];
    let mut ended = Ended::Cut;
    let sent = send_frame(caller.connection.as_fd(), &request, payload, None);
    while sent.is_ok() {
        let Ok(answer) = receive_frame::<Response>(&caller.connection, &mut buffer, 100, None)
        else {
            break;
        };
        // Else the second answer to a call before, whose worker was killed when it had answered.
        if answer.envelope.call_id == request.call_id {
            let bytes = answer.payload.into_vec().unwrap();
            ended = match Errno::from_code(answer.envelope.errno).unwrap() {
                Errno::Ok => {
                    assert_eq!(bytes, payload, "its own answer");
                    Ended::Answered
                }
                Errno::Broken => Ended::Broken,
                other => panic!("{other:?}: {}", String::from_utf8_lossy(&bytes)),
            };
            break;
        }
    }
    if ended == Ended::Cut {
        *connection = None;
    }
    ended
}

/// Many callers on few workers, which are killed all the time.
#[test]
fn every_call_has_one_end_whenever_workers_die() {
    const CALLERS: usize = 12;
    const CALLS: usize = 400;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "killed", workers(3, 64));
    let receiver = function.receiver.clone();
    let (answered, broken, cut) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let over = AtomicBool::new(false);
    let (mut kills, mut ended_before) = (0, 0);
    std::thread::scope(|scope| {
        let (receiver, answered, broken, cut, over) = (&receiver, &answered, &broken, &cut, &over);
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                scope.spawn(move || {
                    let mut connection = None;
                    for number in 0..CALLS {
                        let payload = format!("e{caller}/{number}");
                        let counter = match call(&mut connection, receiver, payload.as_bytes()) {
                            Ended::Answered => answered,
                            Ended::Broken => broken,
                            Ended::Cut => cut,
                        };
                        counter.fetch_add(1, Ordering::Relaxed);
                        // Not always busy: some requests find workers that wait.
                        if number % 16 == caller {
                            std::thread::sleep(Duration::from_millis(3));
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let ended: Vec<_> = callers.into_iter().map(|caller| caller.join()).collect();
            // Also when one of them failed: the test would not stop to kill workers.
            over.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|caller| caller.unwrap());
        });
        while !over.load(Ordering::Relaxed) {
            let workers = function.workers();
            let ended = [answered, broken, cut].map(|one| one.load(Ordering::Relaxed)).iter().sum();
            // Those that die before they have served anything are replaced later and later.
            if workers.len() == 3 && ended > ended_before + CALLERS {
                ended_before = ended;
                let _gone = kill(Pid::from_raw(workers[kills % 3]), Signal::SIGKILL);
                kills += 1;
            }
            std::thread::sleep(Duration::from_micros(9000 + 1300 * (kills as u64 % 7)));
        }
    });
    let counts = [&answered, &broken, &cut].map(|counter| counter.load(Ordering::Relaxed));
    assert_eq!(counts.iter().sum::<usize>(), CALLERS * CALLS, "{counts:?} with {kills} kills");
    assert!(counts[0] > CALLERS * CALLS / 2, "{counts:?} with {kills} kills");
    assert_eq!(call(&mut None, &receiver, b"e"), Ended::Answered);
    function.end();
}

#[test]
fn a_full_queue_is_exact_while_workers_get_on() {
    const QUEUE: usize = 5;
    const SENT: usize = 400;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "exact", workers(1, u32::try_from(QUEUE).unwrap()));
    let mut caller = function.caller();
    for _ in 0..SENT {
        // More at a time than may wait, each of them short.
        caller.send(b"e", LONG_MS);
    }
    let mut numbers: Vec<_> = (0..SENT)
        .map(|_| match caller.receive() {
            (number, Ok(bytes)) => {
                assert_eq!(bytes, b"e");
                number
            }
            (number, outcome) => {
                assert_eq!(errno(outcome), Errno::Overloaded);
                number
            }
        })
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), SENT, "each has one end");
    // The worker is stuck: one runs, QUEUE wait, all others are refused. An answer is there a moment before its worker
    // is free: until then the next request is one of those that wait.
    function.until_idle(1);
    caller.send(b"l", LONG_MS);
    function.until_busy(1);
    let waiting: Vec<_> = (0..QUEUE).map(|_| caller.send(b"e", LONG_MS)).collect();
    let refused: Vec<_> = (0..7).map(|_| caller.send(b"e", LONG_MS)).collect();
    for number in refused {
        let (answered, outcome) = caller.receive();
        assert_eq!((answered, errno(outcome)), (number, Errno::Overloaded));
    }
    kill_worker(&function);
    assert_eq!(errno(caller.receive().1), Errno::Broken);
    for number in waiting {
        let (answered, outcome) = caller.receive();
        assert_eq!((answered, outcome), (number, Ok(b"e".to_vec())), "in their order");
    }
    function.end();
}

#[test]
fn workers_hold_the_connections_that_there_are_and_no_others() {
    const CALLERS: usize = 20;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "held", workers(3, 8));
    let held = |expected: usize| {
        eventually("descriptors of every worker", || {
            let workers = function.workers();
            let holds = |worker: &i32| descriptors_of_worker(*worker) == Some(expected);
            (workers.len() == 3 && workers.iter().all(holds)).then_some(())
        });
    };
    let before = function.container.descriptors().len();
    for _ in 0..3 {
        let mut callers: Vec<_> = (0..CALLERS).map(|_| function.caller()).collect();
        for caller in &mut callers {
            assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
        }
        held(idle_descriptors_len() + CALLERS);
        // One that takes another's place has them all.
        kill(Pid::from_raw(function.workers()[1]), Signal::SIGKILL).unwrap();
        held(idle_descriptors_len() + CALLERS);
        callers.truncate(CALLERS / 2);
        held(idle_descriptors_len() + CALLERS / 2);
        for caller in &mut callers {
            assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
        }
        drop(callers);
        held(idle_descriptors_len());
    }
    eventually("descriptors of init", || {
        (function.container.descriptors().len() == before).then_some(())
    });
    function.end();
}

fn descriptors_of_worker(pid: i32) -> Option<usize> {
    Some(descriptors_of_living(Pid::from_raw(pid))?.len())
}

#[test]
fn more_connections_than_workers_share_are_served_all_the_same() {
    const CALLERS: usize = 300;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "more", workers(8, 400));
    let mut callers: Vec<_> = (0..CALLERS).map(|_| function.caller()).collect();
    for _ in 0..3 {
        let sent: Vec<_> = callers.iter_mut().map(|caller| caller.send(b"e", LONG_MS)).collect();
        for (caller, number) in callers.iter().zip(sent) {
            assert_eq!(caller.receive(), (number, Ok(b"e".to_vec())));
        }
    }
    // A worker still holds what a call has for the moment after its answer.
    eventually("a worker's share of the connections", || {
        let held = descriptors_of(Pid::from_raw(function.workers()[0])).len();
        (held <= idle_descriptors_len() + 1024 / 8).then_some(())
    });
    function.end();
}

#[test]
fn workers_that_read_no_connections_get_what_the_others_cannot_begin() {
    const WORKERS: usize = READERS_MAX + 8;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "many", workers(u32::try_from(WORKERS).unwrap(), 0));
    let mut caller = function.caller();
    function.until_idle(WORKERS);
    for _ in 0..2 {
        let running: Vec<_> = (0..WORKERS).map(|_| caller.send(b"p", 8000)).collect();
        function.until_busy(WORKERS);
        let refused = caller.send(b"e", LONG_MS);
        let (number, outcome) = caller.receive();
        assert_eq!((number, errno(outcome)), (refused, Errno::Overloaded));
        let late = (0..WORKERS).map(|_| caller.receive());
        let mut late: Vec<_> = late
            .map(|(number, outcome)| {
                assert_eq!(errno(outcome), Errno::Timeout);
                number
            })
            .collect();
        late.sort_unstable();
        assert_eq!(late, running);
        function.until_idle(WORKERS);
        assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
    }
    function.end();
}

#[test]
fn a_malformed_request_ends_its_connection_only() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "fault", workers(2, 8));
    let mut other = function.caller();
    for _ in 0..5 {
        let mut liar = function.caller();
        assert_eq!(liar.call(b"c"), Ok(b"1".to_vec()));
        send_frame(liar.connection.as_fd(), &Hello::default(), b"", None).unwrap();
        let mut buffer = [0; 100];
        let until = Some(Deadline::after(WAIT));
        let read = seqpacket::receive(liar.connection.as_fd(), &mut buffer, until);
        assert!(matches!(read, Err(seqpacket::SocketError::Closed)), "{read:?}");
        assert_eq!(other.call(b"c"), Ok(b"1".to_vec()));
    }
    function.end();
}

/// Stops a process and lets it go on when dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(pid: Pid) -> Self {
        kill(pid, Signal::SIGSTOP).unwrap();
        eventually("a process that is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ended = kill(self.0, Signal::SIGCONT);
    }
}

/// Waits until init's watchdog sleeps, and init waits for events.
pub fn until_init_sleeps(function: &Function<'_>) {
    eventually("init that sleeps until it is woken", || {
        let waits = || function.container.status("State:") == "S";
        (function.init_is_asleep() && waits()).then_some(())
    });
}

/// That init's timers do not wake the watchdog, its own tests say.
#[test]
fn init_of_an_idle_function_sleeps() {
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "idle", workers(1, 8));
    for _ in 0..3 {
        assert_eq!(function.caller().call(b"c"), Ok(b"1".to_vec()));
        until_init_sleeps(&function);
    }
    function.end();
}

/// True when a worker keeps segments to lend.
fn has_pool(worker: Pid) -> bool {
    let names = descriptors_of(worker).into_iter().map(|(_, name)| name.display().to_string());
    names.into_iter().any(|name| name.contains("cwasi-pool"))
}

/// Workers whose segments are out, or came back, sleep as others do.
#[test]
fn a_pool_changes_nothing_about_who_sleeps_on_what() {
    const WORKERS: usize = 4;
    const CALLS: u64 = 200;
    let fixture = Fixture::new();
    let function = Function::start(&fixture, "pools", workers(WORKERS as u32, 8));
    let (mut mode, route, _pool) = function.lending_caller();
    let mut caller = function.caller();
    let pids: Vec<_> = function.workers().into_iter().map(Pid::from_raw).collect();
    eventually("one that leads, and its followers, while all have pools", || {
        for pid in &pids {
            function.until_idle(WORKERS);
            let others = pids.iter().filter(|other| *other != pid);
            let stopped: Vec<_> = others.map(|other| Stopped::new(*other)).collect();
            let answer = large_call(&mut mode, &route, &[b'e'; 100_000]).unwrap();
            assert_eq!(answer.len(), 100_000);
            drop(stopped);
        }
        for _ in 0..CALLS {
            assert_eq!(caller.call(b"c"), Ok(b"1".to_vec()));
        }
        function.until_idle(WORKERS);
        let roles = function.leader().is_some() && function.followers().len() == WORKERS - 1;
        // On a busy machine some may be given up meanwhile.
        (roles && pids.iter().copied().all(has_pool)).then_some(())
    });
    function.end();
}
