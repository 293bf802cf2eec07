//! Large payloads: put and taken at the same time, and what becomes of a call when either side, a chunk or Redis is
//! lost in between.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cwasi_modes::{CallError, Payload};
use cwasi_networked::RedisSession;
use cwasi_networked::claims::{CHUNK_LEN, ChunkSender, ClaimError, Claims, WINDOW};
use cwasi_sys::random::bytes16;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::network::{self, AnswerKind, Claim, encode};

use crate::faults::call;
use crate::fixture::{Node, PATIENCE, Peer, Served, target, wait_for};

/// More chunks than lie in Redis at a time.
const MANY: u64 = 2 * WINDOW;
const A_MOMENT: Duration = Duration::from_millis(5);
/// How often a sender asks for room in vain before it is believed to wait.
const ASKED: u64 = 5;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[2]).collect()
}

fn chunks(count: u64) -> Vec<u8> {
    pattern(usize::try_from(count * u64::from(CHUNK_LEN)).unwrap())
}

fn begin(peer: &Peer, session: &RedisSession, payload: &Payload) -> ChunkSender {
    let claims = Claims::default();
    peer.reactor.block_on(claims.begin(session, payload.len(), PATIENCE)).unwrap()
}

/// Puts chunks under the names of a claim, and says so, in this order; never the digest.
fn put_by_hand(redis: &Redis, claim: &Claim, indexes: &[u64]) {
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    for index in indexes {
        let chunk = vec![7_u8; CHUNK_LEN as usize];
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(format!("{}:{index}", claim.key)).arg(chunk).ignore();
        pipe.cmd("RPUSH").arg(&claim.key).arg(*index).ignore();
        pipe.exec(&mut connection).unwrap();
    }
}

fn claim_of(count: u64) -> Claim {
    Claim {
        key: format!("cwasi:pay:{}", hex::encode(bytes16())),
        length: count * u64::from(CHUNK_LEN),
        chunk_length: CHUNK_LEN,
        ..Claim::default()
    }
}

/// A node with an instance, and a peer that calls it with a claim; how that ended.
struct Called {
    served: Served,
    peer: Peer,
}

impl Called {
    fn start() -> Self {
        let served = Served::start();
        let peer = Peer::start(&target(&served.redis));
        Self { served, peer }
    }

    fn call(&mut self, claim: Claim) {
        let (_, message) = call(network::Payload::of_claim(claim));
        self.peer.publish(&self.served.channel(), &encode(&message));
        assert_eq!(self.peer.answer().0, AnswerKind::ANSWER_ACCEPTED);
    }

    fn ends_unrun(&mut self, words: &str) {
        let (kind, errno, text) = self.peer.answer();
        assert_eq!((kind, errno), (AnswerKind::ANSWER_ENDED, 10), "{text}");
        assert!(text.contains(words), "{text}");
        assert_eq!(self.served.ran(), 0);
    }

    fn nothing_is_left(&self, claim: &Claim) {
        let chunks = format!("{}:[0-9]*", claim.key);
        wait_for("the chunks to go", || {
            let redis = &self.served.redis;
            redis.cli(&["KEYS", &chunks]).is_empty() && redis.cli(&["EXISTS", &claim.key]) == "0"
        });
    }
}

#[test]
fn a_sender_lost_between_chunks_leaves_nothing() {
    let mut called = Called::start();
    let claim = claim_of(5);
    put_by_hand(&called.served.redis, &claim, &[0, 1]);
    called.call(claim.clone());
    called.ends_unrun("chunk 2 of 5 did not come");
    called.nothing_is_left(&claim);
}

#[test]
fn a_sender_lost_before_the_digest_leaves_nothing() {
    let mut called = Called::start();
    let claim = claim_of(2);
    called.call(claim.clone());
    put_by_hand(&called.served.redis, &claim, &[0, 1]);
    called.ends_unrun("chunk 2 of 2 did not come");
    called.nothing_is_left(&claim);
}

#[test]
fn chunks_out_of_order_are_an_error_and_nothing_runs() {
    let mut called = Called::start();
    let claim = claim_of(3);
    put_by_hand(&called.served.redis, &claim, &[1, 0, 2]);
    called.call(claim.clone());
    called.ends_unrun("chunk 0 of 3 is missing");
    called.nothing_is_left(&claim);
}

#[test]
fn a_list_that_is_lost_is_an_error_and_nothing_runs() {
    let mut called = Called::start();
    let claim = claim_of(3);
    put_by_hand(&called.served.redis, &claim, &[0, 1, 2]);
    called.served.redis.cli(&["DEL", &claim.key]);
    called.call(claim.clone());
    called.ends_unrun("chunk 0 of 3 did not come");
    called.nothing_is_left(&claim);
}

/// Polls until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() && start.elapsed() < PATIENCE {
        tokio::time::sleep(A_MOMENT).await;
    }
}

/// How often a sender has asked for room.
fn asked(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "commandstats"]);
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_llen:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

/// Chunks that lie in Redis.
fn there(redis: &Redis, claim: &Claim) -> u64 {
    redis.cli(&["LRANGE", &claim.key, "0", "-1"]).lines().count() as u64
}

#[test]
fn an_unread_payload_stays_within_its_window() {
    let redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    let (session, payload) = (peer.session(), Payload::Inline(chunks(MANY)));
    let mut chunks = begin(&peer, &session, &payload);
    let (claim, complete) = (chunks.claim().clone(), chunks.complete());
    let put = peer.reactor.block_on(async {
        tokio::select! {
            put = chunks.run(&payload) => Some(put),
            () = until(|| asked(&redis) >= ASKED) => None,
        }
    });
    assert!(put.is_none(), "put all of it without anybody who took it");
    let found = there(&redis, &claim);
    assert!((WINDOW..WINDOW + 2).contains(&found), "{found} chunks are there");
    assert!(!complete.load(Ordering::Relaxed));
    peer.reactor.block_on(chunks.remove());
    assert_eq!(redis.cli(&["KEYS", "cwasi:pay:*"]), "");

    let mut chunks = begin(&peer, &session, &payload);
    let claim = chunks.claim().clone();
    let refusing = async {
        until(|| there(&redis, &claim) >= WINDOW).await;
        Claims::default().refuse(&session, &claim).await;
    };
    let put = peer.reactor.block_on(async { tokio::join!(chunks.run(&payload), refusing).0 });
    assert!(matches!(put, Err(ClaimError::Unwanted)), "{put:?}");
}

#[test]
fn a_large_payload_fits_a_server_with_default_limits() {
    let redis = Redis::start(RedisVersion::Redis7);
    let [here, there] = [(), ()].map(|()| Peer::start(&target(&redis)));
    let bytes = pattern(100 << 20);
    let payload = Payload::Inline(bytes.clone());
    let session = here.session();
    let mut chunks = begin(&here, &session, &payload);
    let (claim, other) = (chunks.claim().clone(), there.session());
    let taking = there
        .reactor
        .spawn(async move { Claims::default().receive(&other, &claim, 100 << 20).await.unwrap() });
    here.reactor.block_on(chunks.run(&payload)).unwrap();
    let taken = there.reactor.block_on(taking).unwrap();
    assert!(taken.into_vec().unwrap() == bytes, "other bytes");
    let info = redis.cli(&["INFO", "memory"]);
    let peak = info.lines().find_map(|line| line.trim().strip_prefix("used_memory_peak:")).unwrap();
    let peak: u64 = peak.parse().unwrap();
    assert!(peak < 40 << 20, "Redis held {peak} bytes");
    assert_eq!(redis.cli(&["KEYS", "cwasi:pay:*"]), "");
}

/// A caller whose call a peer has accepted, and how much of its payload that has taken.
fn accepted_by_a_peer(taken: u64, then: impl FnOnce(&mut Redis, Peer, &Node)) -> CallError {
    let mut redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    let mut instance = peer.listen("peer");
    peer.announce("peer");
    let (node, mut worker) = Node::start("here", &target(&redis)).caller_kept();
    let waiting = std::thread::spawn(move || worker.call(&chunks(MANY), PATIENCE));
    let (_, call) = peer.next_call(&mut instance);
    peer.accept(&call);
    let claim = call.payload.claim.clone().unwrap();
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    for index in 0..taken {
        let word: (String, u64) =
            redis::cmd("BLPOP").arg(&claim.key).arg(30).query(&mut connection).unwrap();
        assert_eq!(word.1, index);
        let key = format!("{}:{index}", claim.key);
        let chunk: Vec<u8> = redis::cmd("GETDEL").arg(key).query(&mut connection).unwrap();
        assert_eq!(chunk.len(), CHUNK_LEN as usize);
    }
    if taken == MANY {
        let digest: (String, Vec<u8>) =
            redis::cmd("BLPOP").arg(&claim.key).arg(30).query(&mut connection).unwrap();
        assert_eq!(digest.1.len(), 32);
    }
    drop(instance);
    then(&mut redis, peer, &node);
    waiting.join().unwrap().unwrap_err()
}

#[test]
fn a_callee_lost_before_the_whole_payload_did_not_accept_it() {
    for taken in [0, 2] {
        let error = accepted_by_a_peer(taken, |redis, peer, _node| {
            drop(peer);
            wait_for("the chunks to go", || redis.cli(&["KEYS", "cwasi:pay:*"]).is_empty());
        });
        assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
    }
}

#[test]
fn a_callee_lost_with_the_whole_payload_may_have_run_it() {
    let error = accepted_by_a_peer(MANY, |_redis, peer, _node| drop(peer));
    assert!(matches!(error, CallError::Broken { .. }), "{error:?}");
}

#[test]
fn redis_lost_while_a_payload_is_put_ends_the_call_as_not_accepted() {
    let error = accepted_by_a_peer(2, |redis, peer, node| {
        redis.stop();
        wait_for("the loss to be noticed", || node.locations("nobody").is_err());
        redis.restart();
        drop(peer);
    });
    assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
}
