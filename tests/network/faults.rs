//! One fault each: what the caller is told, and what ran.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cwasi_modes::{CallError, Payload};
use cwasi_networked::Listener;
use cwasi_networked::claims::{CHUNK_LEN, Claims};
use cwasi_networked::session::Decision;
use cwasi_sys::random::bytes16;
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::ids::CallId;
use cwasi_wire::network::{
    self, Answer, AnswerKind, CALL_VERSION, Call, TryId, decode, encode, parse,
};

use crate::fixture::{Node, PATIENCE, Peer, Served, StopWhenDone};
use crate::fixture::{counts, identity, target, wait_for};

fn three_chunks() -> Payload {
    let bytes: Vec<u8> = (0..2 * CHUNK_LEN + 77).map(|i: u32| i.to_le_bytes()[0]).collect();
    Payload::Inline(bytes)
}

/// A call as another node's shim would publish it.
pub fn call(payload: network::Payload) -> (TryId, Call) {
    let id = TryId(bytes16());
    let caller = network::Caller::of(&identity("a"), "", "1", "peer");
    let call = Call {
        version: CALL_VERSION,
        try_id: id.0.to_vec(),
        reply_to: "cwasi:re:peer".into(),
        caller: Some(caller).into(),
        call_id: bytes16().to_vec(),
        target: "b".into(),
        remaining_us: 10_000_000,
        attempt: 1,
        payload: Some(payload).into(),
        ..Call::default()
    };
    (id, call)
}

impl Peer {
    pub fn publish(&self, channel: &str, message: &[u8]) {
        assert_eq!(self.reactor.block_on(self.session().publish(channel, message)), Ok(1));
    }

    /// The next answer to anybody here: its kind, errno and text.
    pub fn answer(&mut self) -> (AnswerKind, i32, String) {
        let answers = &mut self.answers;
        let next = async { tokio::time::timeout(PATIENCE, answers.next()).await };
        let message = self.reactor.block_on(next).unwrap().unwrap();
        // A refusal has the version of its caller.
        let answer: Answer = parse(&message).unwrap();
        let text = String::from_utf8_lossy(&answer.payload.inline).into_owned();
        (answer.kind.unwrap(), answer.errno, text)
    }

    /// The channel of the shim that accepts the next call, once it has; earlier ones may end unrun meanwhile.
    pub fn accepted_by(&mut self) -> String {
        loop {
            let answers = &mut self.answers;
            let next = async { tokio::time::timeout(PATIENCE, answers.next()).await };
            let answer: Answer = parse(&self.reactor.block_on(next).unwrap().unwrap()).unwrap();
            if answer.kind.unwrap() == AnswerKind::ANSWER_ACCEPTED {
                return answer.from;
            }
            assert_eq!(answer.errno, 10, "an earlier call ended otherwise");
        }
    }

    /// The next call for an instance that this peer listens as.
    pub fn next_call(&self, listener: &mut Listener) -> (TryId, Call) {
        self.next_call_within(PATIENCE, listener).expect("a call")
    }

    fn next_call_within(&self, wait: Duration, listener: &mut Listener) -> Option<(TryId, Call)> {
        let next = async { tokio::time::timeout(wait, listener.next()).await };
        let message = self.reactor.block_on(next).ok()?.unwrap();
        let call: Call = decode(&message).unwrap();
        Some((TryId::from_field(&call.try_id).unwrap(), call))
    }

    fn reply(&self, to: &Call, kind: AnswerKind, payload: network::Payload) {
        let id = TryId::from_field(&to.try_id).unwrap();
        let answer = Answer::of("cwasi:re:peer", id, kind, CallStatus::ANSWERED, payload);
        self.publish(&to.reply_to, &encode(&answer));
    }

    pub fn accept(&self, call: &Call) {
        assert!(self.accepts(call), "its caller has given it up");
    }

    /// Accepts a call; false if its caller has given it up.
    fn accepts(&self, call: &Call) -> bool {
        let id = TryId::from_field(&call.try_id).unwrap();
        let decision = self.reactor.block_on(self.session().decide(id, "peer")).unwrap();
        let is_ours = decision == Decision::Ours;
        if is_ours {
            self.reply(call, AnswerKind::ANSWER_ACCEPTED, network::Payload::default());
        }
        is_ours
    }

    fn put(&self, payload: &Payload) -> network::Claim {
        let (claims, session) = (Claims::default(), self.session());
        self.reactor.block_on(async {
            let mut chunks = claims.begin(&session, payload.len(), PATIENCE).await.unwrap();
            chunks.run(payload).await.unwrap();
            chunks.claim().clone()
        })
    }
}

#[test]
fn a_stale_location_is_dropped_and_the_next_instance_serves() {
    let served = Served::start();
    let target = target(&served.redis);
    Peer::start(&target).announce("stale");
    let (_node, mut worker) = Node::start("here", &target).caller_kept();
    for _ in 0..4 {
        assert_eq!(worker.call(b"x", PATIENCE), Ok(b"x".to_vec()));
    }
    assert_eq!(served.redis.cli(&["EXISTS", "cwasi:at:stale"]), "0");
    assert!(counts(&served.executions).values().all(|count| *count == 1));
}

#[test]
fn without_anybody_left_a_call_ends_as_not_accepted() {
    let redis = Redis::start(RedisVersion::Redis7);
    Peer::start(&target(&redis)).announce("stale");
    let (_node, mut worker) = Node::start("here", &target(&redis)).caller_kept();
    let ended = worker.call(b"x", PATIENCE);
    assert!(matches!(ended, Err(CallError::Unreachable { .. })), "{ended:?}");
}

#[test]
fn an_instance_that_does_not_accept_is_given_up_for_good() {
    let redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    let mut silent = peer.listen("silent");
    peer.announce("silent");
    let (_node, mut worker) = Node::start("here", &target(&redis)).caller_kept();
    let ended = worker.call(b"x", PATIENCE);
    assert!(matches!(ended, Err(CallError::Unreachable { .. })), "{ended:?}");
    // Now it wakes up, and may not run it any more.
    let (id, _call) = peer.next_call(&mut silent);
    let decision = peer.reactor.block_on(peer.session().decide(id, "silent"));
    assert_eq!(decision, Ok(Decision::Theirs("caller".into())));
}

#[test]
fn a_damaged_request_runs_nothing() {
    let served = Served::start();
    let mut peer = Peer::start(&target(&served.redis));
    let faults: [(&[&str], &str); 5] = [
        (&["DEL", "KEY:1"], "chunk 1 of 3 is missing"),
        (&["SET", "KEY:1", "short"], "a chunk has another length"),
        (&["SET", "KEY:2", &"x".repeat(77)], "its digest differs"),
        (&["LSET", "KEY", "3", "another digest"], "its digest differs"),
        (&["DEL", "KEY:0", "KEY:1", "KEY:2"], "chunk 0 of 3 is missing"),
    ];
    for (command, words) in faults {
        let claim = peer.put(&three_chunks());
        let command: Vec<_> = command.iter().map(|word| word.replace("KEY", &claim.key)).collect();
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        served.redis.cli(&command);
        let (_, message) = call(network::Payload::of_claim(claim));
        peer.publish(&served.channel(), &encode(&message));
        assert_eq!(peer.answer().0, AnswerKind::ANSWER_ACCEPTED);
        let (kind, errno, text) = peer.answer();
        assert_eq!((kind, errno), (AnswerKind::ANSWER_ENDED, 10), "{text}");
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(served.ran(), 0);
}

#[test]
fn a_missing_chunk_of_a_response_is_an_error_never_a_short_response() {
    let redis = Redis::start(RedisVersion::Valkey8);
    let peer = Peer::start(&target(&redis));
    let mut instance = peer.listen("peer");
    peer.announce("peer");
    let (_node, mut worker) = Node::start("here", &target(&redis)).caller_kept();
    let waiting = std::thread::spawn(move || worker.call(b"x", PATIENCE));
    let (_, call) = peer.next_call(&mut instance);
    peer.accept(&call);
    let claim = peer.put(&three_chunks());
    redis.cli(&["DEL", &format!("{}:2", claim.key)]);
    peer.reply(&call, AnswerKind::ANSWER_ENDED, network::Payload::of_claim(claim));
    let ended = waiting.join().unwrap();
    let Err(CallError::Broken { cause, .. }) = ended else { panic!("{ended:?}") };
    assert!(cause.to_string().contains("chunk 2 of 3 is missing"), "{cause}");
}

#[test]
fn a_late_reply_is_dropped() {
    let redis = Redis::start(RedisVersion::Redis7);
    let peer = Peer::start(&target(&redis));
    let mut instance = peer.listen("peer");
    peer.announce("peer");
    let (_node, mut worker) = Node::start("here", &target(&redis)).caller_kept();
    // On a busy machine the first deadline may come before the call is accepted.
    let late = [2, 8, 30].map(Duration::from_secs).into_iter().find_map(|wait| {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| worker.call(b"late", wait));
            let (_, late) = peer.next_call_within(wait, &mut instance)?;
            let is_accepted = peer.accepts(&late);
            let ended = waiting.join().unwrap();
            (is_accepted && matches!(ended, Err(CallError::Timeout { .. }))).then_some(late)
        })
    });
    let late = late.expect("a call that is accepted and not answered before its deadline");
    let claim = peer.put(&three_chunks());
    let key = claim.key.clone();
    peer.reply(&late, AnswerKind::ANSWER_ENDED, network::Payload::of_claim(claim));
    wait_for("the late response to go", || redis.cli(&["EXISTS", &key]) == "0");
    let waiting = std::thread::spawn(move || worker.call(b"next", PATIENCE));
    let (_, next) = peer.next_call(&mut instance);
    peer.accept(&next);
    peer.reply(&next, AnswerKind::ANSWER_ENDED, network::Payload::of_bytes(b"mine".to_vec()));
    assert_eq!(waiting.join().unwrap(), Ok(b"mine".to_vec()));
}

#[test]
fn a_call_of_an_unknown_version_is_refused_in_words_and_not_run() {
    let served = Served::start();
    let mut peer = Peer::start(&target(&served.redis));
    let (_, mut message) = call(network::Payload::of_bytes(b"x".to_vec()));
    message.version = 7;
    peer.publish(&served.channel(), &encode(&message));
    let (kind, errno, text) = peer.answer();
    assert_eq!((kind, errno), (AnswerKind::ANSWER_REFUSED, 10), "{text}");
    assert!(text.contains("version 7") && text.contains("speaks 2"), "{text}");
    assert_eq!(served.ran(), 0);
}

#[test]
fn the_same_publication_twice_runs_once() {
    let served = Served::start();
    let mut peer = Peer::start(&target(&served.redis));
    let (_, message) = call(network::Payload::of_bytes(b"x".to_vec()));
    let channel = served.channel();
    for _ in 0..3 {
        peer.publish(&channel, &encode(&message));
    }
    assert_eq!(peer.answer().0, AnswerKind::ANSWER_ACCEPTED);
    assert_eq!(peer.answer().0, AnswerKind::ANSWER_ENDED);
    // One more, which comes after all of them.
    let (_, other) = call(network::Payload::of_bytes(b"y".to_vec()));
    peer.publish(&channel, &encode(&other));
    assert_eq!(peer.answer().0, AnswerKind::ANSWER_ACCEPTED);
    assert_eq!(peer.answer().0, AnswerKind::ANSWER_ENDED);
    let ids = [&message, &other].map(|call| CallId::from_slice(&call.call_id).unwrap());
    let ran: Vec<_> = served.executions.lock().unwrap().iter().map(|(id, _)| *id).collect();
    assert_eq!(ran, ids);
}

#[test]
fn calls_end_in_time_when_redis_restarts() {
    let mut served = Served::start();
    let here = Node::start("here", &target(&served.redis));
    let callers: Vec<_> = (0..4).map(|_| here.caller()).collect();
    let (stop, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopWhenDone(&stop);
        let running: Vec<_> = callers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(|| {
                    let mut ends = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let id = CallId(bytes16());
                        let end = worker.call_as(id, b"slow", PATIENCE);
                        failed.fetch_or(end.is_err(), Ordering::Relaxed);
                        ends.push((id, end));
                    }
                    (ends, worker)
                })
            })
            .collect();
        wait_for("calls", || served.ran() > 20);
        served.redis.stop();
        wait_for("a call that notices", || failed.load(Ordering::Relaxed));
        served.redis.restart();
        let before = served.ran();
        wait_for("service after the restart", || served.ran() > before + 20);
        stop.store(true, Ordering::Relaxed);
        let counts = counts(&served.executions);
        for caller in running {
            let (ends, _worker) = caller.join().unwrap();
            for (id, end) in ends {
                let ran = counts.get(&id).copied().unwrap_or(0);
                match end {
                    Ok(_) | Err(CallError::Broken { .. }) => assert!(ran <= 1, "{end:?}"),
                    Err(CallError::Unreachable { .. }) => assert_eq!(ran, 0, "{end:?}"),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    assert!(counts(&served.executions).values().all(|count| *count == 1));
}
