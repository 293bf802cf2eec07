//! Direct connections over a bad network, and to a peer that makes too many. Each test has a network of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_direct::connection::{Kind, read_message};
use cwasi_direct::key::NodeKey;
use cwasi_direct::tls::Tls;
use cwasi_modes::CallError;
use cwasi_networked::{RedisLink, nodes};
use cwasi_sys::random::bytes16;
use cwasi_testbed::netns::Netns;
use cwasi_testbed::own_process::in_a_process_of_its_own;
use cwasi_wire::envelope::Path;
use cwasi_wire::ids::CallId;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::direct::{Pair, under_load};
use crate::fixture::{Executions, Node, PATIENCE, StopWhenDone, counts, reactor, target, wait_for};
use crate::packet_filter::{Dropped, PacketFilter};

/// How calls have ended.
pub type Ends = HashMap<CallId, Result<Vec<u8>, CallError>>;

pub fn in_a_network(test: impl FnOnce() + Send + 'static) {
    Netns::new(&[]).run(test);
}

fn port(pair: &Pair) -> u16 {
    pair.hosts[1].settings.listen.port()
}

/// What each caller was told is true.
pub fn assert_true(executions: &Executions, ends: &Ends) {
    let counts = counts(executions);
    for (id, end) in ends {
        let ran = counts.get(id).copied().unwrap_or_default();
        let is_true = match end {
            Ok(_) => ran == 1,
            Err(CallError::Unreachable { .. }) => ran == 0,
            Err(CallError::Broken { .. } | CallError::Timeout { .. }) => ran <= 1,
            Err(_) => false,
        };
        assert!(is_true, "{end:?} after {ran} runs");
    }
}

/// Calls of four workers during `meanwhile`, each of which ends somehow.
pub fn ends_under_load(here: &Node, meanwhile: impl FnOnce()) -> Ends {
    let (stop, ends) = (AtomicBool::new(false), Mutex::new(Ends::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (stop, ends, mut worker) = (&stop, &ends, here.caller());
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let id = CallId(bytes16());
                    let end = worker.call_as(id, b"x", PATIENCE);
                    ends.lock().unwrap().insert(id, end);
                }
            });
        }
        let _stopping = StopWhenDone(&stop);
        meanwhile();
    });
    ends.into_inner().unwrap()
}

fn path(pair: &Pair) -> Path {
    pair.here.caller().path_of_a_call()
}

#[test]
fn lost_packets_lose_no_call() {
    const CALLS: usize = 60;
    in_a_network(|| {
        let pair = Pair::start();
        let mut first = 0;
        wait_for("a direct call", || {
            first += 1;
            path(&pair) == Path::PATH_DIRECT
        });
        let filter = PacketFilter::of_port(port(&pair), Dropped::Percent(5));
        let large = vec![9; 300_000];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (mut worker, large) = (pair.here.caller(), &large);
                scope.spawn(move || {
                    for number in 0..CALLS {
                        let payload = if number % 10 == 0 { large } else { &b"x"[..] };
                        let answer = worker.call(payload, PATIENCE).map(|answer| answer.len());
                        assert_eq!(answer, Ok(payload.len()));
                    }
                });
            }
        });
        drop(filter);
        pair.assert_ran(first + 4 * CALLS);
    });
}

#[test]
fn what_large_packets_do_not_reach_is_reached_over_redis() {
    in_a_network(|| {
        let pair = Pair::start();
        let mut worker = pair.here.caller();
        wait_for("a direct call", || worker.path_of_a_call() == Path::PATH_DIRECT);
        let filter = PacketFilter::of_port(port(&pair), Dropped::LongerThan(1500));
        assert_eq!(worker.path_of_a_call(), Path::PATH_DIRECT, "small packets arrive");
        let large = vec![9; 3 << 20];
        let mut call = || worker.call(&large, PATIENCE).map(|answer| answer.len());
        assert_eq!(call(), Ok(large.len()));
        let why = pair.why_not_direct().unwrap();
        assert!(why.contains("are large packets lost on the way (MTU)?"), "{why}");
        drop(filter);
        wait_for("a direct connection", || path(&pair) == Path::PATH_DIRECT);
        assert_eq!(call(), Ok(large.len()));
        assert!(counts(&pair.executions).values().all(|count| *count == 1));
    });
}

#[test]
fn a_peer_that_vanishes_without_a_word_leaves_every_call_an_end() {
    in_a_network(|| {
        let pair = Pair::start();
        wait_for("a direct call", || path(&pair) == Path::PATH_DIRECT);
        let ends = ends_under_load(&pair.here, || {
            std::thread::sleep(Duration::from_millis(200));
            let filter = PacketFilter::of_port(port(&pair), Dropped::All);
            wait_for("calls over Redis", || path(&pair) == Path::PATH_REDIS);
            drop(filter);
            wait_for("direct calls", || path(&pair) == Path::PATH_DIRECT);
        });
        assert_true(&pair.executions, &ends);
        // The connections of both sides from before are gone, and nothing waits for them.
        let calls = under_load(&pair, || {});
        assert!(calls > 0);
    });
}

/// Raises the limit of this process as far as it goes.
fn allow_descriptors(least: u64) {
    let (_soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= least, "the test needs {least} descriptors, and may have {hard}");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// Bytes of memory that this process has now, and the most that it had since [`forget_most`].
fn resident() -> [usize; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let field = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kib: usize = field.trim().trim_end_matches(" kB").parse().unwrap();
        kib << 10
    })
}

fn assert_grown(bytes: usize, connections: usize, max: usize) {
    let each = bytes / connections;
    assert!(each < max, "{each} bytes for each of {connections} connections");
}

fn forget_most() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_peer_with_ten_thousand_connections_keeps_no_other_one_from_calling() {
    let test =
        "direct_faults::a_peer_with_ten_thousand_connections_keeps_no_other_one_from_calling";
    in_a_process_of_its_own(test, || in_a_network(ten_thousand_connections));
}

fn ten_thousand_connections() {
    const ALL: usize = 10_000;
    /// Those that prove the peer's node: more than one may have.
    const PROVEN: usize = 2500;
    /// Descriptors of the callee's node beside them.
    const OTHERS: usize = 1500;
    /// Memory of this process for one connection, in bytes: both its ends.
    const PROVEN_MAX: usize = 64 << 10;
    const SILENT_MAX: usize = 8 << 10;
    allow_descriptors(15_000);
    let pair = Pair::start();
    wait_for("a direct call", || path(&pair) == Path::PATH_DIRECT);
    let (link, _instance) = pair.link();
    let (reactor, target) = (reactor(), target(&pair.redis));
    let tls = reactor.block_on(async {
        let (redis, _answers) = RedisLink::start(&target, "cwasi:re:stranger").unwrap();
        let until = tokio::time::Instant::now() + PATIENCE;
        let session = redis.session(until).await.unwrap();
        let key = NodeKey::fresh().unwrap();
        nodes::announce(&session, key.public(), "stranger").await.unwrap();
        Tls::new(key).unwrap()
    });
    let before = descriptors();
    forget_most();
    let [at_first, _most] = resident();
    let mut held = Vec::new();
    let (mut taken, mut refused) = (0, 0);
    // Few at a time: each has the time of one handshake.
    while taken + refused < PROVEN {
        let mut connecting = JoinSet::new();
        for _ in 0..20 {
            let (tls, link) = (tls.clone(), link.clone());
            let connect = async move {
                let stream = TcpStream::connect(&link.address).await.ok()?;
                let mut stream = tls.connect(stream, &link.shim, &link.proof).await.ok()?;
                let (kind, text) = read_message(&mut stream).await.ok()??;
                Some((stream, kind, String::from_utf8(text).unwrap()))
            };
            connecting.spawn_on(connect, reactor.handle());
        }
        // On a machine that stands still, a handshake takes too long.
        let connected = reactor.block_on(connecting.join_all()).into_iter().flatten();
        for (stream, kind, text) in connected {
            if kind == Kind::Ready {
                taken += 1;
            } else {
                refused += 1;
                assert!(text.contains("of this node are open"), "{text}");
            }
            held.push(stream);
        }
        assert_eq!(path(&pair), Path::PATH_DIRECT, "after {taken} and {refused}");
    }
    assert!(taken > 0 && refused > 0, "{taken} and {refused}");
    let [_now, with_proven] = resident();
    assert_grown(with_proven - at_first, held.len(), PROVEN_MAX);
    // Another node's connections are new.
    let late = pair.hosts[0].shim(&target);
    assert_eq!(late.caller().path_of_a_call(), Path::PATH_DIRECT);
    let silent: Vec<_> =
        (PROVEN..ALL).map(|_| silent_connection(pair.hosts[1].settings.listen)).collect();
    let calls = under_load(&pair, || {
        // One without connections: over Redis, while strangers have all places.
        let late = pair.hosts[0].shim(&target);
        assert_eq!(late.caller().call(b"late", PATIENCE), Ok(b"late".to_vec()));
    });
    assert!(calls > 0);
    let [_now, with_all] = resident();
    assert_grown(with_all - with_proven, silent.len(), SILENT_MAX);
    let own = descriptors() - before - held.len() - silent.len();
    assert!(own < OTHERS + taken, "{own} descriptors");
    drop((held, silent));
    wait_for("a new direct connection", || {
        let late = pair.hosts[0].shim(&target);
        late.caller().path_of_a_call() == Path::PATH_DIRECT
    });
    assert!(counts(&pair.executions).values().all(|count| *count == 1));
}

/// A connection that says nothing, and may not be accepted yet.
fn silent_connection(address: SocketAddr) -> OwnedFd {
    let SocketAddr::V4(address) = address else { panic!("an IPv4 address") };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
    let connecting = connect(socket.as_raw_fd(), &SockaddrIn::from(address));
    assert!(matches!(connecting, Ok(()) | Err(Errno::EINPROGRESS)), "{connecting:?}");
    socket
}
