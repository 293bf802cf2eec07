//! Cases of the processor time of moving data, over all participants.

use anyhow::{Result, ensure};
use cwasi_bench_protocol::{Answer, Job, Made, Verb};

use super::Group;
use super::sequential::WORKERS;
use crate::accounts::{CpuTimes, family, ours};
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, stage};
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
    cases: |_| [false, true].map(name).to_vec(),
    run,
};

/// Payload in bytes.
const SIZE: usize = 100 * MIB;

fn name(touch: bool) -> String {
    format!("cpu-per-GiB-100MiB-inplace-touch-{}", if touch { "all" } else { "none" })
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
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

fn measure(session: &mut Session, fixture: &Fixture<'_>, touch: bool) -> Result<()> {
    let (rounds, block) = (session.effort.pick(12, 4), session.effort.pick(4, 3));
    let callee = if touch { TOUCH_ALL } else { TOUCH_NONE };
    let job = Job {
        verb: Verb::Call,
        targets: vec![callee.0.to_owned()],
        size: SIZE,
        made: Made::InPlace,
        touch,
        count: block,
        branches: 1,
    };
    let mut driver = fixture.driver(&[])?;
    let program = std::env::current_exe()?;
    let peers = [Peer::new(Baseline::UdsCopy), Peer::new(Baseline::HttpLoopback)];
    let mut sides: Vec<Side> =
        peers.iter().map(|peer| peer.start(&program)).collect::<Result<_>>()?;
    let mut spent = vec![Rounds::default(); 1 + peers.len()];
    for round in 0..=rounds {
        let mut used = vec![used(&ours(fixture.scene), &mut driver.side, &job)?];
        for side in &mut sides {
            used.push(self::used(&family(side.pid()), side, &job)?);
        }
        if round > 0 {
            for (rounds, used) in spent.iter_mut().zip(used) {
                rounds.0.push(vec![used]);
            }
        }
    }
    for side in sides.into_iter().chain([driver.side]) {
        side.end()?;
    }
    let Some((ours, theirs)) = spent.split_first() else { return Ok(()) };
    for (peer, theirs) in peers.iter().zip(theirs) {
        session.report.add(Comparison {
            case: &name(touch),
            unit: "s/GiB",
            ours,
            baseline: Some((peer.name(), theirs)),
            direction: Direction::BaselineByOurs,
            conditions: format!(
                "CPU time of all processes that take part (ours: functions, shim daemon, zygote; the baseline's: both), what \
                 making the payloads took subtracted; {block} payloads of 100 MiB a round, {rounds} rounds in turns; made in \
                 place, a fresh or renewed instance for each request; socket copy into fresh memory"
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
