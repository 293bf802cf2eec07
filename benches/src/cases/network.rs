//! Cases of calls to a function on another node, directly and over Redis: two containerds in networks of their own on
//! this machine, with a cable between them, whose rate some cases limit.

use std::path::Path;

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::link::Link;
use cwasi_testbed::nodes::{Nodes, configure, configure_with};
use cwasi_testbed::redis::Redis;

use super::Group;
use super::sequential::WORKERS;
use crate::fixture::{Fixture, TOUCH_ALL, shim, unlimited_redis};
use crate::peers::{Baseline, Peer};
use crate::plan::{MIB, Turns, size_name};
use crate::session::Session;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "network",
    about: "a function on another node",
    cases: |_| SIZES.map(|size| format!("{}-call", name(size))).to_vec(),
    run,
};

/// The same over cables of some rates.
pub const CABLES: Group = Group {
    name: "cables",
    about: "a function on another node, over a cable of 1 and of 10 Gbit/s",
    cases: |_| RATES.map(|(word, _)| format!("{}-call", limited_name(word))).to_vec(),
    run: run_cables,
};

/// Rates of cables, in words and in Mbit/s.
const RATES: [(&str, u32); 2] = [("1Gbit", 1000), ("10Gbit", 10_000)];
const LIMITED_SIZE: usize = 100 * MIB;

/// Payloads in bytes.
const SIZES: [usize; 3] = [64, 2 * MIB, 100 * MIB];

/// Two nodes that reach each other. Their logs have no line for each call, as by default.
pub(crate) fn nodes(programs: &Path, name: &str) -> Result<Nodes> {
    let nodes = Nodes::joined(&shim(programs)?, name);
    for (scene, node) in [(&nodes.edge, "edge"), (&nodes.cloud, "cloud")] {
        configure(scene.containerd.ready(), node, &nodes.redis, "info");
    }
    Ok(nodes)
}

fn name(size: usize) -> String {
    format!("network-{}", size_name(size))
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let nodes = nodes(&session.programs, "bench-network")?;
    let redis = unlimited_redis();
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    cloud.callee(TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    for size in SIZES {
        let entry = format!("{}-call", name(size));
        if wanted.contains(&entry) {
            session.case(&[entry], |session| measure(session, &nodes, &edge, &redis, size));
        }
    }
    Ok(())
}

fn limited_name(rate: &str) -> String {
    format!("{}-{rate}", name(LIMITED_SIZE))
}

fn run_cables(session: &mut Session, wanted: &[String]) -> Result<()> {
    let nodes = nodes(&session.programs, "bench-cables")?;
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    cloud.callee(TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    for (word, rate) in RATES {
        let entry = format!("{}-call", limited_name(word));
        if wanted.contains(&entry) {
            session.case(&[entry], |session| limited(session, &nodes, &edge, (word, rate)));
        }
    }
    Ok(())
}

fn limited(
    session: &mut Session,
    nodes: &Nodes,
    edge: &Fixture<'_>,
    (word, rate): (&str, u32),
) -> Result<()> {
    // A call takes a second at 1 Gbit/s.
    let Turns { rounds, block } = session.effort.turns(LIMITED_SIZE);
    let turns = Turns { rounds: rounds.div_ceil(2), block };
    let job = job(LIMITED_SIZE, turns);
    let certificate = tempfile::tempdir().context("a folder for a certificate")?;
    let peers = natives(nodes, certificate.path())?;
    // A workflow of its own, as the sides of `measure` have.
    let ours = edge.driver(&[("cwasi.mode", "networked"), ("cwasi.workflow", word)])?;
    let mut sides = vec![Contestant { name: "ours", side: ours.side, job: job.clone() }];
    for peer in &peers {
        sides.push(session.contestant(peer, &job)?);
    }
    let limit = |rate| {
        for node in [&nodes.edge, &nodes.cloud] {
            Link::limit(node.containerd.guard_pid(), rate);
        }
    };
    limit(Some(rate));
    let measured = take(sides, turns);
    limit(None);
    let conditions = format!(
        "100MiB payload, callee reads all of it; all sides over the cable between two nodes on this machine, \
         which a token bucket of tc limits to {rate} Mbit/s in each direction, headers included, without further \
         delay; ours directly; tcp and tls (rustls) between two native processes, into fresh memory; \
         cwasi.concurrency={WORKERS}; {}",
        Session::turns_text(turns)
    );
    session.report.add_calls(&limited_name(word), &conditions, &measured?);
    Ok(())
}

fn job(size: usize, turns: Turns) -> Job {
    Job {
        verb: Verb::Call,
        targets: vec![TOUCH_ALL.0.to_owned()],
        size,
        made: Made::InPlace,
        touch: true,
        count: turns.block,
        branches: 1,
    }
}

/// TCP and TLS over the nodes' cable.
pub(super) fn natives(nodes: &Nodes, certificate: &Path) -> Result<[Peer; 2]> {
    let [tcp, tls] = [Baseline::Tcp, Baseline::Tls].map(|kind| native(kind, nodes, certificate));
    Ok([tcp?, tls?])
}

/// A baseline over the cable that the nodes' direct connections use. The folder is for a certificate.
pub(super) fn native(kind: Baseline, nodes: &Nodes, certificate: &Path) -> Result<Peer> {
    let cloud = &nodes.cloud.containerd;
    let address = cloud.ready().link.as_ref().context("a node without a cable")?.address;
    let folder = certificate.to_str().context("a name of the folder")?;
    let client = nodes.edge.containerd.guard_pid();
    Ok(Peer::new(kind).through(folder).across(client, (cloud.guard_pid(), address)))
}

fn measure(
    session: &mut Session,
    nodes: &Nodes,
    edge: &Fixture<'_>,
    redis: &Redis,
    size: usize,
) -> Result<()> {
    // A call over the network takes milliseconds, whatever its size.
    let Turns { rounds, block } = session.effort.turns(size);
    let turns = Turns { rounds: rounds.div_ceil(2), block: block.div_ceil(4) };
    let job = job(size, turns);
    // A workflow of its own: a shim of its own, which reads the configuration when it starts.
    let driver =
        |workflow| edge.driver(&[("cwasi.mode", "networked"), ("cwasi.workflow", workflow)]);
    let direct = driver("direct")?;
    let ready = nodes.edge.containerd.ready();
    configure_with(ready, "edge", &nodes.redis, "info", "link = \"redis\"\n");
    let over_redis = driver("over-redis");
    configure(ready, "edge", &nodes.redis, "info");
    let certificate = tempfile::tempdir().context("a folder for a certificate")?;
    let [tcp, tls] = natives(nodes, certificate.path())?;
    let peers = [Peer::new(Baseline::Redis).through(&redis.url()), tcp, tls];
    let mut sides = vec![
        Contestant { name: "ours", side: direct.side, job: job.clone() },
        Contestant { name: "over-redis", side: over_redis?.side, job: job.clone() },
    ];
    for peer in &peers {
        sides.push(session.contestant(peer, &job)?);
    }
    let measured = take(sides, turns)?;
    let conditions = format!(
        "{} payload, callee reads all of it; ours between two nodes on this machine, each a containerd in a network of its own \
         with a cable to the other one, and one to a Redis 7 with its default limits; over-redis is ours with link = \"redis\"; redis is \
         one message to a subscriber through another Redis 7 over loopback, without the limits that cut off subscribers of more than \
         about 28 MiB; tcp and tls (rustls) are two native processes over the nodes' cable, into fresh memory; \
         a fresh or renewed instance for each request, cwasi.concurrency={WORKERS}; {}",
        size_name(size),
        Session::turns_text(turns)
    );
    session.report.add_calls(&name(size), &conditions, &measured);
    Ok(())
}
