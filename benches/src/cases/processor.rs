//! Cases of the processor time of moving data, over all participants.

use anyhow::{Context as _, Result, ensure};
use cwasi_bench_protocol::{Answer, Job, Made, Verb};

use super::Group;
use super::network::{natives, nodes};
use super::sequential::WORKERS;
use crate::accounts::{CpuTimes, family, ours};
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, stage, unlimited_redis};
use crate::peers::{Baseline, Peer};
use crate::plan::MIB;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::side::Side;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "processor",
    about: "processor seconds by GiB",
    cases: |_| vec![name(false), name(true), NETWORK.to_owned()],
    run,
};

/// The same to another node.
const NETWORK: &str = "cpu-per-GiB-100MiB-network";

/// Payload in bytes.
const SIZE: usize = 100 * MIB;

fn name(touch: bool) -> String {
    format!("cpu-per-GiB-100MiB-inplace-touch-{}", if touch { "all" } else { "none" })
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    if wanted.iter().any(|case| case == NETWORK) {
        session.case(&[NETWORK.to_owned()], measure_network);
    }
    if [false, true].map(name).iter().any(|case| wanted.contains(case)) {
        run_local(session, wanted)?;
    }
    Ok(())
}

fn run_local(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-processor")?;
    let fixture = Fixture::on(&scene);
    for callee in [TOUCH_NONE, TOUCH_ALL] {
        fixture.callee(callee, &[("cwasi.concurrency", WORKERS)]);
    }
    for touch in [false, true] {
        let case = name(touch);
        if wanted.contains(&case) {
            session.case(std::slice::from_ref(&case), |session| measure(session, &fixture, touch));
        }
    }
    Ok(())
}

/// One of those whose processor time is compared.
struct Party<'a> {
    name: &'static str,
    side: Side,
    /// The processes whose time counts.
    processes: Box<dyn Fn() -> Vec<i32> + 'a>,
}

/// A baseline's client and servers, and others whose time is its, too.
fn native<'a>(peer: &Peer, others: Vec<i32>) -> Result<Party<'a>> {
    let side = peer.start(&std::env::current_exe()?)?;
    let pid = side.pid();
    let processes = Box::new(move || [family(pid), others.clone()].concat());
    Ok(Party { name: peer.name(), side, processes })
}

fn measure(session: &mut Session, fixture: &Fixture<'_>, touch: bool) -> Result<()> {
    let callee = if touch { TOUCH_ALL } else { TOUCH_NONE };
    let driver = fixture.driver(&[])?;
    let mut parties = vec![Party {
        name: "ours",
        side: driver.side,
        processes: Box::new(|| ours(fixture.scene)),
    }];
    for kind in [Baseline::UdsCopy, Baseline::HttpLoopback] {
        parties.push(native(&Peer::new(kind), Vec::new())?);
    }
    let what = "the baseline's: both); a fresh or renewed instance for each request; socket copy into fresh memory";
    compare(session, &name(touch), (callee.0, touch), parties, what)
}

/// Calls to another node, directly and over Redis.
fn measure_network(session: &mut Session) -> Result<()> {
    let nodes = nodes(&session.programs, "bench-processor-network")?;
    let redis = unlimited_redis();
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    cloud.callee(TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    let certificate = tempfile::tempdir().context("a folder for a certificate")?;
    let driver = edge.driver(&[("cwasi.mode", "networked")])?;
    let all = || [ours(&nodes.edge), ours(&nodes.cloud)].concat();
    let mut parties = vec![Party { name: "ours", side: driver.side, processes: Box::new(all) }];
    parties.push(native(&Peer::new(Baseline::Redis).through(&redis.url()), vec![redis.pid()])?);
    for peer in natives(&nodes, certificate.path())? {
        parties.push(native(&peer, Vec::new())?);
    }
    let what = "of both nodes; the baseline's: both, and the Redis server); ours directly over the nodes' \
                cable, as tcp and tls are; redis over loopback";
    compare(session, NETWORK, (TOUCH_ALL.0, true), parties, what)
}

/// Has the parties take turns, and adds each baseline beside the first one.
fn compare(
    session: &mut Session,
    case: &str,
    (callee, touch): (&str, bool),
    mut parties: Vec<Party<'_>>,
    what: &str,
) -> Result<()> {
    let (rounds, block) = (session.effort.pick(12, 4), session.effort.pick(4, 3));
    let job = Job {
        verb: Verb::Call,
        targets: vec![callee.to_owned()],
        size: SIZE,
        made: Made::InPlace,
        touch,
        count: block,
        branches: 1,
    };
    let mut spent = vec![Rounds::default(); parties.len()];
    for round in 0..=rounds {
        for (party, spent) in parties.iter_mut().zip(&mut spent) {
            let used = used(&(party.processes)(), &mut party.side, &job)?;
            // The first round warms up.
            if round > 0 {
                spent.0.push(vec![used]);
            }
        }
    }
    let names: Vec<_> = parties.iter().map(|party| party.name).collect();
    for party in parties.into_iter().rev() {
        party.side.end()?;
    }
    let Some((ours, theirs)) = spent.split_first() else { return Ok(()) };
    for (name, theirs) in names.into_iter().skip(1).zip(theirs) {
        session.report.add(Comparison {
            case,
            unit: "s/GiB",
            ours,
            baseline: Some((name, theirs)),
            direction: Direction::BaselineByOurs,
            conditions: format!(
                "CPU time of all processes that take part (ours: functions, shim daemon, zygote; {what}; \
                 what making the payloads took subtracted; {block} payloads of 100 MiB a round, {rounds} rounds in turns; made in place"
            ),
        });
    }
    Ok(())
}

/// Seconds by GiB of one block.
#[expect(clippy::cast_precision_loss, reason = "seconds and gigabytes")]
fn used(processes: &[i32], side: &mut Side, job: &Job) -> Result<f64> {
    let before = CpuTimes::of(processes)?;
    let Answer { calls, making_cpu, .. } = side.perform(job)?;
    ensure!(calls == job.count as u64, "{calls} calls of {}", job.count);
    let nanos = before.used()?.saturating_sub(making_cpu);
    let gib = (job.count * job.size) as f64 / (1024 * MIB) as f64;
    Ok(nanos as f64 / 1e9 / gib)
}
