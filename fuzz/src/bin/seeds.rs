//! Writes the first inputs of the targets, from the encoders of the runtime: `scripts/fuzz.sh seeds`.
//!
//! Targets that make something of any bytes (`guest_memory`, `rewrite`, `trampoline`, `trust`) need none.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use cwasi_abi::{PARTS_MAX, PAYLOAD_MAX, PartEntry, parts_head, parts_header_len};
use cwasi_config::NodeConfig;
use cwasi_config::annotations::{CONCURRENCY_MAX, MEMORY_MAX, QUEUE_MAX};
use cwasi_coordinator::registry::Record;
use cwasi_host::state::{ContainerRecord, Pointer, RegisteredAs};
use cwasi_networked::resp::command;
use cwasi_vm::trampoline::{DispatchCallee, LinkedFunction, Number, dispatch, link};
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
    self, Answer, AnswerKind, CALL_VERSION, Call, Caller, Claim, Event, KEPT_VERSION, Location,
    Payload, TryId,
};
use cwasi_wire::trace::{Phase, PhaseKind, Span, SpanKind, SpanReport, TraceContext};
use libfuzzer_sys as _;
use protobuf::{Message as _, MessageField};
use simple_dns::rdata::{A, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, ResourceRecord, TYPE};

type Outcomes<T> = Result<T, Box<dyn Error>>;

/// The folder with the inputs of all targets.
struct Corpus(PathBuf);

impl Corpus {
    fn add(&self, target: &str, name: &str, bytes: impl AsRef<[u8]>) -> Outcomes<()> {
        let folder = self.0.join(target);
        fs::create_dir_all(&folder)?;
        Ok(fs::write(folder.join(name), bytes)?)
    }
}

fn main() -> Outcomes<()> {
    let corpus = Corpus(std::env::args_os().nth(1).ok_or("usage: seeds CORPUS")?.into());
    frames(&corpus)?;
    control(&corpus)?;
    network(&corpus)?;
    files(&corpus)?;
    texts(&corpus)?;
    documents(&corpus)?;
    images(&corpus)?;
    modules(&corpus)?;
    answers(&corpus)
}

fn identity() -> Identity {
    Identity { namespace: "n".into(), pod_namespace: "p".into(), function: "f".into() }
}

fn request() -> Request {
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

fn frames(corpus: &Corpus) -> Outcomes<()> {
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
        reason: "callee on this host".into(),
        calls: 3,
        errors: BTreeMap::from([("timeout".into(), 1)]),
        request_bytes: 10,
        response_bytes: 20,
        latency_sum_ns: 11_000_000,
        latency_ns: BTreeMap::from([(1_000_000, 2), (9_000_000, 1)]),
    }
}

fn control(corpus: &Corpus) -> Outcomes<()> {
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
    let function = FunctionReport { workers: 2, busy: 1, queued: 3, refused: 4, pool_bytes: 5 };
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
        mode: "local".into(),
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

fn network(corpus: &Corpus) -> Outcomes<()> {
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
        http: true,
    };
    corpus.add("network", "call", network::encode(&call(payload())))?;
    corpus.add("network", "claim", network::encode(&call(Payload::of_claim(claim))))?;
    corpus.add("network", "answer", network::encode(&answer))?;
    corpus.add("network", "event", network::encode(&event))?;
    corpus.add("network", "location", location.encode())?;
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

fn files(corpus: &Corpus) -> Outcomes<()> {
    let record = Record {
        identity: identity(),
        instance: "i".into(),
        group: "g".into(),
        workflow: "w".into(),
        trust: "t".into(),
        allow: vec!["*".into()],
        socket: "/run/cwasi/r/i.sock".into(),
        max_payload: 1 << 20,
        container: "c".into(),
        http: false,
        http_port: None,
    };
    let container = ContainerRecord {
        namespace: "n".into(),
        id: "c".into(),
        group: "g".into(),
        bundle: "/run/containerd/c".into(),
        rootfs: "/run/containerd/c/rootfs".into(),
        rootfs_mounted: true,
        pid: 7,
        pid_started: 12345,
        cgroups: vec!["/sys/fs/cgroup/default/c".into()],
        shim_pid: 6,
        shim_started: 12300,
        registered: Some(RegisteredAs { identity: identity(), instance: "i".into() }),
        receiver: Some("/run/cwasi/r/i.sock".into()),
    };
    let pointer = Pointer { state_dir: "/run/cwasi".into(), group: "g".into() };
    corpus.add("registry", "record.json", serde_json::to_vec_pretty(&record)?)?;
    corpus.add("state", "container.json", serde_json::to_vec(&container)?)?;
    corpus.add("state", "pointer.json", serde_json::to_vec(&pointer)?)?;
    corpus.add("state", "config.json", serde_json::to_vec(&NodeConfig::default())?)
}

fn texts(corpus: &Corpus) -> Outcomes<()> {
    let secondary = "cwasi.role=secondary\ncwasi.function=f\ncwasi.workflow=w\ncwasi.trust=t\ncwasi.mode=auto\n\
        cwasi.allow=a,b/c,d/*\ncwasi.concurrency=4\ncwasi.queue=64\ncwasi.isolation=snapshot\ncwasi.max-requests=7\n\
        cwasi.idle=30s\ncwasi.timeout=500ms\ncwasi.max-payload=64KiB\ncwasi.memory=1MiB\ncwasi.fan-in=8\n\
        cwasi.fan-in.timeout=5s\ncwasi.fan-in.partial=deliver\n";
    let digest = "0a".repeat(32);
    let embeds = format!(
        "cwasi.workflow=w\ncwasi.embed=fn_utils,geo=host:5000/geo:1,x=y@sha256:{digest}\ncwasi.network=db:5432,*.a.b:443,10.0.0.0/8:*,[fd00::/8]:1\n"
    );
    let pod = "io.kubernetes.cri.container-name=c\nio.kubernetes.cri.sandbox-id=s\ncwasi.secondary.function.c=true\ncwasi.queue.d=1\n";
    corpus.add("annotations", "secondary", secondary)?;
    // Each by itself: a change to one value is not lost among problems of others.
    for (number, line) in secondary.lines().skip(1).enumerate() {
        let lines = format!("cwasi.role=secondary\n{line}\n");
        corpus.add("annotations", &format!("one-{number}"), lines)?;
    }
    for (name, above) in [
        ("concurrency", CONCURRENCY_MAX + 1),
        ("queue", QUEUE_MAX + 1),
        ("memory", MEMORY_MAX + 1),
        ("max-payload", PAYLOAD_MAX + 1),
        ("fan-in", u64::from(PARTS_MAX) + 1),
    ] {
        let lines = format!("cwasi.role=secondary\ncwasi.{name}={above}\n");
        corpus.add("annotations", &format!("above-{name}"), lines)?;
    }
    corpus.add("annotations", "embeds", embeds)?;
    corpus.add("annotations", "pod", pod)?;
    for (name, entry) in [
        ("name", "db.example:5432"),
        ("below", "*.example.com:443"),
        ("v4", "10.0.0.0/8:*"),
        ("v6", "[2001:db8::]/32:443"),
        ("any", "*:53"),
    ] {
        corpus.add("egress", name, [&[169, 254, 169, 254][..], entry.as_bytes()].concat())?;
    }
    let config = "state_dir = \"/run/x\"\nnode = \"edge\"\ntrust_groups = [\"t\"]\nredis_url = \"rediss://u:p@h:6380/1\"\n\
        [compile]\njobs = 3\nmemory = \"1GiB\"\nfunction_size = 4096\ncgroup = \"a/b\"\n";
    corpus.add("node_config", "all.toml", config)?;
    let membership = "12:pids:/default/c\n1:name=systemd:/\n0::/default/c\n";
    let mounts = "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n31 25 0:27 /docker /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
    corpus.add("procfs", "cgroups", format!("{membership}--\n{mounts}--\n/default/c"))?;
    let stat = "7 (a) b) Z 1 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
    corpus.add("procfs", "stat", stat)?;
    corpus.add("procfs", "cpuinfo", "processor : 0\nflags : sse2 avx fpu\n")
}

fn documents(corpus: &Corpus) -> Outcomes<()> {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let bundle = serde_json::json!({
        "ociVersion": "1.0.2",
        "process": {"cwd": "/", "args": ["/m.wasm#f"], "env": ["A=b"], "user": {"uid": 0, "gid": 0}},
        "root": {"path": "rootfs"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/etc/hosts", "type": "bind", "source": "/etc/hosts"},
            {"destination": "/tmp", "type": "tmpfs"}],
        "annotations": {"cwasi.role": "secondary", "cwasi.workflow": "w", "cwasi.network": "db:80"},
        "linux": {"resources": {"memory": {"limit": 1048576}}, "cgroupsPath": "/default/c"},
    });
    corpus.add("oci_config", "function.json", bundle.to_string())?;
    let layer =
        |kind: &str| serde_json::json!({"mediaType": kind, "digest": digest("b"), "size": 3});
    let config = layer("application/vnd.oci.image.config.v1+json");
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config,
        "layers": [layer("application/vnd.oci.image.layer.v1.tar+gzip"), layer("application/wasm")]});
    let platform = serde_json::json!({"os": "wasip1", "architecture": "wasm"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest("c"), "size": 3, "platform": platform}]});
    let image = serde_json::json!({"architecture": "wasm", "os": "wasip1",
        "config": {"Entrypoint": ["m.wasm#f"], "WorkingDir": "/app"}, "rootfs": {"type": "layers", "diff_ids": [digest("d")]}});
    corpus.add("manifest", "manifest.json", manifest.to_string())?;
    corpus.add("manifest", "index.json", index.to_string())?;
    corpus.add("manifest", "config.json", image.to_string())?;
    let any = protobuf::well_known_types::any::Any {
        type_url: "runtimeoptions.v1.Options".into(),
        value: b"\x12\x0b/etc/n.toml\x1a\x0anode = \"a\"".to_vec(),
        ..Default::default()
    };
    corpus.add("options", "any", any.write_to_bytes()?)?;
    let bootstrap = serde_json::json!({"extensions": [{"value":
        {"@type": "type.googleapis.com/runtimeoptions.v1.Options", "configBody": "bm9kZT0iYSI="}}]});
    corpus.add("options", "bootstrap.json", bootstrap.to_string())
}

fn images(corpus: &Corpus) -> Outcomes<()> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in
        [("./etc/hosts", &b"x"[..]), ("app/.wh.old.wasm", b""), ("app/m.wasm", b"\0asm")]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes)?;
    }
    let tar = tar.into_inner()?;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&tar)?;
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&tar[..], level);
    // The first byte: any bytes (8), searched for one file (4), packed in this way.
    for (name, choice, layer) in
        [("plain", 8 | 4, tar), ("gzip", 8 | 4 | 1, gzip.finish()?), ("zstd", 8 | 4 | 2, zstd)]
    {
        corpus.add("layers", name, [vec![choice], layer].concat())?;
    }
    let parts: [(u32, &[u8]); 2] = [(0, b"one"), (2, b"three")];
    let mut block = parts_head(4, 2).to_vec();
    let mut end = parts_header_len(2);
    for (number, part) in parts {
        let (offset, len) = (u32::try_from(end)?, u32::try_from(part.len())?);
        block.extend(PartEntry { offset, len, number, reserved: 0 }.to_bytes());
        end += part.len();
    }
    parts.iter().for_each(|(_, part)| block.extend_from_slice(part));
    corpus.add("parts", "block", block)
}

fn modules(corpus: &Corpus) -> Outcomes<()> {
    let function = LinkedFunction {
        number: 7,
        name: "mix".into(),
        params: vec![Number::I32, Number::F64],
        results: vec![Number::I64],
    };
    let callee = DispatchCallee {
        name: "a".into(),
        frees: true,
        lends_response: false,
        has_payload_buffer: false,
    };
    corpus.add("module", "link", link("fn_utils", &[function]))?;
    corpus.add("module", "dispatch", dispatch(&[Some(callee)]))?;
    // (module (import "wasi_snapshot_preview1" "fd_close" (func (param i32) (result i32))) (memory (export "memory") 1)
    //   (global (mut i32) (i32.const 1)) (func (export "_start") (drop (call 0 (i32.const 5))))), and native code.
    let module = b"\0asm\x01\0\0\0\x01\x09\x02\x60\x01\x7f\x01\x7f\x60\0\0\
        \x02\x23\x01\x16wasi_snapshot_preview1\x08fd_close\0\0\x03\x02\x01\x01\x05\x03\x01\0\x01\
        \x06\x06\x01\x7f\x01\x41\x01\x0b\x07\x13\x02\x06memory\x02\0\x06_start\0\x01\
        \x0a\x09\x01\x07\0\x41\x05\x10\0\x1a\x0b\0\x0c\x08wasmedge\x01\x02\x03";
    corpus.add("module", "command", module)
}

fn answers(corpus: &Corpus) -> Outcomes<()> {
    let mut packet = Packet::new_reply(0x1234);
    packet.set_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED);
    let (name, alias) = (Name::new("db.example")?, Name::new("a.example")?);
    packet.questions.push(Question::new(name.clone(), TYPE::A.into(), CLASS::IN.into(), false));
    let cname = RData::CNAME(CNAME(alias.clone()));
    packet.answers.push(ResourceRecord::new(name, CLASS::IN, 60, cname));
    let address = RData::A(A { address: 0x0a00_0001 });
    packet.answers.push(ResourceRecord::new(alias, CLASS::IN, 60, address));
    corpus.add("dns", "answer", packet.build_bytes_vec_compressed()?)?;
    // Addresses of the other kind do not answer.
    packet.questions[0].qtype = TYPE::AAAA.into();
    corpus.add("dns", "other-kind", packet.build_bytes_vec_compressed()?)?;
    corpus.add("dns", "hosts", "127.0.0.1 localhost\n10.0.0.1 db.example db # here\n")?;
    let servers = "nameserver 10.0.0.2\nnameserver ::1\nsearch a.b c\noptions ndots:2 timeout:3\n";
    corpus.add("dns", "resolv.conf", servers)
}
