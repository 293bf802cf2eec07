//! Redis away under load: nodes that know each other go on calling, also over new connections.
//!
//! An outage takes ten seconds, or `CWASI_TEST_OUTAGE_SECONDS`. More than 605 are as long as all that expires: locations
//! and keys in Redis, how long shims believe both, connections without calls, and connections that are too old.

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cwasi_modes::CallError;
use cwasi_sys::random::bytes16;
use cwasi_testbed::redis::Redis;
use cwasi_wire::envelope::Path;
use cwasi_wire::ids::CallId;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::direct::{Host, Pair};
use crate::direct_faults::in_a_network;
use crate::failover::forward;
use crate::fixture::{PATIENCE, StopWhenDone, Worker, counts, target, wait_for};

const VARIABLE: &str = "CWASI_TEST_OUTAGE_SECONDS";
/// Callers of a shim, and how often each calls.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);
/// Calls of all together before an outage, in each half of it and after it.
const MANY: usize = 200;

fn outage() -> Duration {
    let seconds = std::env::var(VARIABLE).map_or(10, |it| it.parse().expect(VARIABLE));
    Duration::from_secs(seconds)
}

/// A forwarder in front of a port, whose connections a test cuts.
struct Relay {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(port: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::<Mutex<Vec<_>>>::default();
        let opened = Arc::clone(&open);
        // Ends with the test process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, Ok(server)) = (client.unwrap(), TcpStream::connect(port)) else {
                    continue;
                };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                    opened.lock().unwrap().push(stream.try_clone().unwrap());
                }
                forward(client, server);
            }
        });
        Self { address, open }
    }

    fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        // Some have ended before.
        open.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count() / 2
    }
}

struct Ended {
    id: CallId,
    began: Instant,
    ended: Instant,
    result: Result<(), CallError>,
}

/// `count` has the calls of all workers.
fn call_until(
    (stop, count): (&AtomicBool, &AtomicUsize),
    worker: &mut Worker,
    pause: Duration,
) -> Vec<Ended> {
    let mut ends = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let (id, began) = (CallId(bytes16()), Instant::now());
        let result = worker.call_as(id, &id.0, PATIENCE);
        let result = result.map(|answer| assert_eq!(answer, id.0, "another's answer"));
        ends.push(Ended { id, began, ended: Instant::now(), result });
        count.fetch_add(1, Ordering::Relaxed);
        sleep(pause);
    }
    ends
}

/// How long the calls took.
fn times(ends: &[Ended]) -> String {
    let mut times: Vec<_> = ends.iter().map(|end| end.ended - end.began).collect();
    times.sort();
    let [half, most, all] =
        [50, 99, 100].map(|part| times[(times.len() * part / 100).min(times.len() - 1)]);
    format!("{} calls, p50 {half:?}, p99 {most:?}, longest {all:?}", times.len())
}

/// Calls while Redis is away. Connections are cut after this share of the outage, in percent: what is under way then may
/// end as unknown or not accepted. All other calls succeed.
fn play(name: &str, cut_after: u32, leave: fn(&mut Redis), return_: fn(&mut Redis)) {
    let hosts = [Host::new("here"), Host::new("there")];
    let relay = Relay::to(hosts[1].settings.listen);
    let [here, mut there] = hosts;
    there.settings.advertise = Some(relay.address.to_string());
    let mut pair = Pair::of([here, there]);
    let target = target(&pair.redis);
    // Its calls are so rare that it keeps no connection in a long outage.
    let seldom = pair.hosts[0].shim(&target);
    let Pair { redis, here, hosts, executions, .. } = &mut pair;
    for node in [&*here, &seldom] {
        wait_for("a direct call", || node.caller().path_of_a_call() == Path::PATH_DIRECT);
    }
    let (stop, count, outage) = (AtomicBool::new(false), AtomicUsize::new(0), outage());
    let calls_go_on = || {
        let before = count.load(Ordering::Relaxed);
        wait_for("calls", || count.load(Ordering::Relaxed) >= before + MANY);
    };
    let (ends, cut, connections) = std::thread::scope(|scope| {
        let shared = (&stop, &count);
        let stopping = StopWhenDone(&stop);
        let load =
            |mut worker: Worker, pause| scope.spawn(move || call_until(shared, &mut worker, pause));
        let mut callers: Vec<_> = (0..CALLERS).map(|_| load(here.caller(), PAUSE)).collect();
        callers.push(load(seldom.caller(), outage / 8));
        calls_go_on();
        leave(redis);
        // The outage's length, and not a wait for anything.
        let before = outage * cut_after / 100;
        sleep(before);
        calls_go_on();
        let from = Instant::now();
        let connections = relay.cut();
        let cut = from..=Instant::now();
        sleep(outage - before);
        calls_go_on();
        return_(redis);
        let late = hosts[0].shim(&target);
        wait_for("a node that knows nothing to call", || {
            late.caller().path_of_a_call() == Path::PATH_DIRECT
        });
        calls_go_on();
        drop(stopping);
        let ends: Vec<_> = callers.into_iter().flat_map(|it| it.join().unwrap()).collect();
        (ends, cut, connections)
    });
    assert!(connections > 0);
    let counts = counts(executions);
    assert!(counts.values().all(|count| *count == 1), "a call ran twice");
    let (mut failed, mut in_the_cut) = (Vec::new(), 0);
    for end in &ends {
        let is_cut = end.began <= *cut.end() && end.ended >= *cut.start();
        match &end.result {
            Ok(()) => assert!(counts.contains_key(&end.id), "answered and not run"),
            Err(CallError::Broken { .. }) if is_cut => in_the_cut += 1,
            Err(CallError::Unreachable { .. }) if is_cut => {
                in_the_cut += 1;
                assert!(!counts.contains_key(&end.id), "not accepted and run");
            }
            Err(error) => failed.push((end.began - *cut.start(), error)),
        }
    }
    println!("{name}: {connections} connections cut, with {in_the_cut} calls; {}", times(&ends));
    assert!(failed.is_empty(), "{failed:?}");
}

fn signal(redis: &Redis, signal: Signal) {
    kill(Pid::from_raw(redis.pid()), signal).unwrap();
}

#[test]
fn calls_go_on_while_redis_hangs() {
    in_a_network(|| {
        let stop = |redis: &mut Redis| signal(redis, Signal::SIGSTOP);
        play("hangs", 50, stop, |redis| signal(redis, Signal::SIGCONT));
    });
}

#[test]
fn calls_go_on_while_redis_is_gone_and_after_it_came_back_empty() {
    in_a_network(|| {
        play("gone", 2, Redis::stop, Redis::restart);
    });
}
