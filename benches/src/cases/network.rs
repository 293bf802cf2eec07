//! Cases of calls to a function on another node, directly and over Redis: two containerds in networks of their own on
//! this machine.

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
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

/// Payloads in bytes.
const SIZES: [usize; 3] = [64, 2 * MIB, 100 * MIB];

fn name(size: usize) -> String {
    format!("network-{}", size_name(size))
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let nodes = Nodes::joined(&shim(&session.programs)?, "bench-network");
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
    let job = Job {
        verb: Verb::Call,
        targets: vec![TOUCH_ALL.0.to_owned()],
        size,
        made: Made::InPlace,
        touch: true,
        count: turns.block,
        branches: 1,
    };
    // A workflow of its own: a shim of its own, which reads the configuration when it starts.
    let driver =
        |workflow| edge.driver(&[("cwasi.mode", "networked"), ("cwasi.workflow", workflow)]);
    let direct = driver("direct")?;
    let ready = nodes.edge.containerd.ready();
    configure_with(ready, "edge", &nodes.redis, "info", "link = \"redis\"\n");
    let over_redis = driver("over-redis");
    configure(ready, "edge", &nodes.redis, "info");
    let certificate = tempfile::tempdir().context("a folder for a certificate")?;
    let folder = certificate.path().to_str().context("a name of it")?;
    let peers = [
        Peer::new(Baseline::Redis).through(&redis.url()),
        Peer::new(Baseline::Tls).through(folder),
    ];
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
         about 28 MiB; tls is rustls between two native processes over loopback, into fresh memory; a fresh or renewed instance for each \
         request, cwasi.concurrency={WORKERS}; {}",
        size_name(size),
        Session::turns_text(turns)
    );
    session.report.add_calls(&name(size), &conditions, &measured);
    Ok(())
}
