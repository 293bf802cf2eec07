//! Writes the first inputs of the targets, from the encoders of the runtime: `scripts/fuzz.sh seeds`.
//!
//! Targets that make something of any bytes (`guest_memory`, `rewrite`, `trampoline`, `trust`) need none.

mod corpus;
mod messages;

use std::io::Write as _;

use cwasi_abi::{PARTS_MAX, PAYLOAD_MAX, PartEntry, parts_head, parts_header_len};
use cwasi_config::NodeConfig;
use cwasi_config::annotations::{CONCURRENCY_MAX, MEMORY_MAX, QUEUE_MAX};
use cwasi_content::referrers::{ARTIFACT_TYPE, CODE_TYPE, TITLE};
use cwasi_coordinator::registry::Record;
use cwasi_host::state::{ContainerRecord, Pointer, RegisteredAs};
use cwasi_vm::trampoline::{DispatchCallee, LinkedFunction, Number, dispatch, link};
use libfuzzer_sys as _;
use protobuf::Message as _;
use simple_dns::rdata::{A, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, ResourceRecord, TYPE};

use corpus::{Corpus, Outcomes};
use messages::{control, frames, identity, network};

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
        max_head: 0,
        container: "c".into(),
        http: false,
        http_port: None,
        http_idle_ms: 0,
        timeout_ms: None,
        triggers: Vec::new(),
        workers: None,
        link: String::new(),
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

/// An envelope whose signature is of no key, and an artifact.
fn precompiled(corpus: &Corpus, config: &serde_json::Value) -> Outcomes<()> {
    let envelope = serde_json::json!({"payloadType": "application/vnd.cwasi.native.statement.v1+json", "payload": "e30=",
        "signatures": [{"sig": format!("{}==", "A".repeat(86))}]});
    corpus.add("precompiled", "envelope.json", envelope.to_string())?;
    let digest = format!("sha256:{}", "a".repeat(64));
    let layer = |title: &str| serde_json::json!({"mediaType": CODE_TYPE, "digest": digest, "size": 3, "annotations": {TITLE: title}});
    let artifact = serde_json::json!({"schemaVersion": 2, "artifactType": ARTIFACT_TYPE, "config": config,
        "layers": [layer("m.cwasm"), layer("m.cwasm.sig")],
        "subject": {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 3}});
    corpus.add("precompiled", "artifact.json", artifact.to_string())
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
    precompiled(corpus, &config)?;
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
