//! Inputs of the targets that read messages of other processes and hosts.

use std::collections::BTreeMap;

use cwasi_networked::resp::command;
use cwasi_wire::control::{
    EdgeReport, EmitReply, EmitRequest, FunctionReport, ResolveReply, ResolveRequest,
    SandboxMessage, Verb, VerbReply, VerbRequest, encode,
};
use cwasi_wire::envelope::{
    Assignment, CallStatus, Detail, Hello, Join, Request, Response, SharedConnection, Undelivered,
};
use cwasi_wire::frame::{Enveloped, PayloadRef, encode_head};
use cwasi_wire::ids::{CallId, Identity};
use cwasi_wire::network::{
    self, Answer, AnswerKind, CALL_VERSION, Call, Caller, Claim, Event, KEPT_VERSION, Link,
    Location, NodeProof, Payload, TryId,
};
use cwasi_wire::trace::{Phase, PhaseKind, Span, SpanKind, SpanReport, TraceContext};
use protobuf::MessageField;

use crate::corpus::{Corpus, Outcomes};

pub fn identity() -> Identity {
    Identity { namespace: "n".into(), pod_namespace: "p".into(), function: "f".into() }
}

pub fn request() -> Request {
    Request {
        call_id: vec![7; 16],
        target: "callee".into(),
        remaining_us: 1_000_000,
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        tracestate: "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE".into(),
        attempt: 1,
        run: vec![8; 16],
        join: MessageField::some(Join { key: "k".into(), parts: 3, part: 1, ..Join::default() }),
        ..Request::default()
    }
}

pub fn frames(corpus: &Corpus) -> Outcomes<()> {
    fn frame<E: Enveloped>(envelope: &E, payload: PayloadRef<'_>) -> Outcomes<Vec<u8>> {
        let mut bytes = encode_head(envelope, payload)?;
        if let PayloadRef::Inline(inline) = payload {
            bytes.extend_from_slice(inline);
        }
        Ok(bytes)
    }
    let inline = PayloadRef::Inline(b"payload");
    let none = PayloadRef::Inline(b"");
    let hello = frame(&Hello::of(&identity(), "w", "i").lending(true), none)?;
    let id = CallId([7; 16]);
    let outcome = CallStatus::of(5, Detail::DETAIL_DEADLINE);
    let assignment = Assignment { request: MessageField::some(request()), ..Assignment::default() };
    let line =
        SharedConnection { connection: 3, caller: "c".into(), ..SharedConnection::default() };
    let response = Response::of(id, outcome);
    let undelivered = Undelivered {
        response: MessageField::some(response.clone()),
        connection: 9,
        ..Undelivered::default()
    };
    corpus.add("frame", "hello", &hello)?;
    corpus.add("frame", "request", frame(&request(), inline)?)?;
    corpus.add("frame", "segment", frame(&request(), PayloadRef::Segment(1 << 20))?)?;
    corpus.add("frame", "leased", frame(&request(), PayloadRef::Leased(1 << 20))?)?;
    corpus.add("frame", "to-one", frame(&request(), PayloadRef::LeasedToOne(1 << 20))?)?;
    corpus.add("frame", "response", frame(&response, inline)?)?;
    corpus.add("frame", "assignment", frame(&assignment, inline)?)?;
    corpus.add("frame", "shared", frame(&line, none)?)?;
    corpus.add("frame", "undelivered", frame(&undelivered, inline)?)?;
    // The first byte: how many descriptors of which kinds, and whether the caller lends.
    let chosen = |choice: u8, bytes: Vec<u8>| [vec![choice], bytes].concat();
    corpus.add("request", "hello", chosen(0, hello))?;
    corpus.add("request", "inline", chosen(0, frame(&request(), inline)?))?;
    corpus.add("request", "segment", chosen(1, frame(&request(), PayloadRef::Segment(256))?))?;
    corpus.add("request", "leased", chosen(30, frame(&request(), PayloadRef::Leased(256))?))?;
    corpus.add(
        "request",
        "to-one",
        chosen(30, frame(&request(), PayloadRef::LeasedToOne(256))?),
    )?;
    // From one who may not lend.
    corpus.add("request", "unlent", chosen(26, frame(&request(), PayloadRef::Leased(256))?))?;
    corpus.add("request", "large", chosen(1, frame(&request(), PayloadRef::Segment(1 << 20))?))
}

fn report() -> EdgeReport {
    EdgeReport {
        caller: "f".into(),
        module: String::new(),
        callee: "g".into(),
        mode: "local".into(),
        path: String::new(),
        reason: "callee on this host".into(),
        calls: 3,
        errors: BTreeMap::from([("timeout".into(), 1)]),
        request_bytes: 10,
        response_bytes: 20,
        latency_sum_ns: 11_000_000,
        latency_ns: BTreeMap::from([(1_000_000, 2), (9_000_000, 1)]),
    }
}

pub fn control(corpus: &Corpus) -> Outcomes<()> {
    let resolve = ResolveRequest {
        target: "g".into(),
        avoid: vec!["i1".into()],
        held: vec!["i2".into()],
        nearer: true,
    };
    let emit = EmitRequest {
        target: "g".into(),
        length: 7,
        traceparent: String::new(),
        tracestate: String::new(),
        remaining_us: 1000,
    };
    let local = ResolveReply::Local {
        instance: "i".into(),
        reason: "r".into(),
        max_payload: 7,
        max_head: 0,
        instances: 2,
        nearest: true,
        lends: false,
    };
    let verb = |verb| VerbRequest { container: "c".into(), root: "/run".into(), verb };
    let update = Verb::Update { resources: r#"{"memory":{"limit":1048576}}"#.into() };
    let failed = VerbReply::Failed { message: "m".into() };
    let refused = EmitReply { errno: 5, detail: 1, message: "m".into() };
    let edges = encode(&SandboxMessage::Edges(vec![report()]));
    let many = EdgeReport { latency_ns: BTreeMap::from([(1, u64::MAX - 1), (2, 5)]), ..report() };
    corpus.add("edges", "many.json", encode(&SandboxMessage::Edges(vec![many])))?;
    corpus.add("edges", "report.json", &edges)?;
    corpus.add("control", "edges.json", &edges)?;
    let function = FunctionReport {
        workers: 2,
        busy: 1,
        queued: 3,
        refused: 4,
        waiting_parts: 5,
        pool_bytes: 6,
        turns: 7,
    };
    corpus.add("control", "function.json", encode(&SandboxMessage::Function(function)))?;
    let phase = Phase { kind: PhaseKind::Run, start_ns: 2, end_ns: 8 };
    let context = request().traceparent;
    let caller = TraceContext::parse(&context).ok_or("the seed is a trace context")?;
    let span = Span {
        trace: caller.trace,
        id: caller.span,
        parent: Some(caller.span),
        kind: SpanKind::Server,
        module: "m".into(),
        peer: "f".into(),
        mode: "networked".into(),
        path: "direct".into(),
        reason: "r".into(),
        start_ns: 1,
        end_ns: 9,
        request_bytes: 7,
        response_bytes: 8,
        errno: 5,
        phases: vec![phase],
        tracestate: "a=1".into(),
    };
    let spans = SpanReport { spans: vec![span], dropped: 3 };
    corpus.add("control", "spans.json", encode(&SandboxMessage::Spans(spans)))?;
    corpus.add("control", "traceparent", context)?;
    corpus.add("control", "resolve.json", encode(&SandboxMessage::Resolve(resolve)))?;
    corpus.add("control", "emit.json", encode(&SandboxMessage::Emit(emit)))?;
    corpus.add("control", "ready.json", encode(&SandboxMessage::Ready))?;
    corpus.add("control", "local.json", encode(&local))?;
    corpus.add("control", "none.json", encode(&ResolveReply::NoOther { instances: 2 }))?;
    corpus.add("control", "refused.json", encode(&refused))?;
    corpus.add("control", "start.json", encode(&verb(Verb::Start)))?;
    corpus.add("control", "update.json", encode(&verb(update)))?;
    corpus.add("control", "created.json", encode(&VerbReply::Created { pid: 7 }))?;
    corpus.add("control", "failed.json", encode(&failed))
}

pub fn network(corpus: &Corpus) -> Outcomes<()> {
    let claim =
        Claim { key: "k".into(), length: 3 << 20, chunk_length: 1 << 19, ..Claim::default() };
    let call = |payload| Call {
        version: CALL_VERSION,
        try_id: vec![9; 16],
        reply_to: "r".into(),
        caller: MessageField::some(Caller::of(&identity(), "w", "i", "node")),
        call_id: vec![7; 16],
        target: "g".into(),
        remaining_us: 1000,
        attempt: 1,
        payload: MessageField::some(payload),
        ..Call::default()
    };
    let payload = || Payload::of_bytes(b"payload".to_vec());
    let ended = AnswerKind::ANSWER_ENDED;
    let answer = Answer::of("node", TryId([9; 16]), ended, CallStatus::ANSWERED, payload());
    let event = Event {
        version: KEPT_VERSION,
        event_id: vec![3; 16],
        target: "g".into(),
        payload: MessageField::some(payload()),
        ..Event::default()
    };
    let location = Location {
        identity: identity(),
        node: "node".into(),
        instance: "i".into(),
        allow: vec!["a".into(), "m/*".into()],
        max_payload: 7,
        max_head: 0,
        http: true,
        link: Some(Box::new(Link {
            address: "edge:9470".into(),
            shim: "0a1b".into(),
            proof: NodeProof::Key(vec![1; 44]),
        })),
    };
    corpus.add("network", "call", network::encode(&call(payload())))?;
    corpus.add("network", "claim", network::encode(&call(Payload::of_claim(claim))))?;
    corpus.add("network", "answer", network::encode(&answer))?;
    corpus.add("network", "event", network::encode(&event))?;
    corpus.add("network", "location", location.encode())?;
    // Pieces of three bytes: a call, and the id of one that is given up.
    let mut direct = vec![3];
    for (kind, message) in [(1, network::encode(&call(payload()))), (2, vec![9; 16])] {
        direct.extend([kind, 0, 0, 0]);
        direct.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        direct.extend(message);
    }
    corpus.add("direct", "messages", direct)?;
    corpus.add("direct", "name", "\x030a1b.cwasi")?;
    let mut set = Vec::new();
    command(&mut set, &[b"SET", b"k", b"v"]);
    corpus.add("redis", "command", set)?;
    for (name, text) in [
        ("simple", "+OK\r\n"),
        ("error", "-OOM command not allowed\r\n"),
        ("integer", ":-3\r\n"),
        ("bytes", "$3\r\nabc\r\n"),
        ("none", "$-1\r\n"),
        ("array", "*2\r\n$1\r\na\r\n:7\r\n"),
    ] {
        corpus.add("redis", name, text)?;
    }
    Ok(())
}
