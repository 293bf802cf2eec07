//! Cases of one payload to many callees at a time, and of many payloads to one callee with fan-in.

use anyhow::Result;
use cwasi_bench_protocol::{Job, Made, Verb};

use super::Group;
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, stage};
use crate::peers::{Baseline, Peer};
use crate::plan::{Effort, MIB, Turns};
use crate::report::UDS_COPY_ONE;
use crate::session::Session;
use crate::turns::{Contestant, take};

/// One payload, many callees.
pub const OUT: Group = Group {
    name: "fan-out",
    about: "one payload to many callees",
    cases: |effort| entries(effort, out_branches, out_entries),
    run: run_out,
};

/// Many payloads, one callee.
pub const IN: Group = Group {
    name: "fan-in",
    about: "many payloads to one callee",
    cases: |effort| entries(effort, in_branches, in_entries),
    run: run_in,
};

/// Payload of a branch or part, in bytes.
const SIZE: usize = 2 * MIB;
/// Workers of one function that a fan-out goes to; wider ones go to two.
const WORKERS: usize = 250;
/// Widest fan with a process for each branch on the side of HTTP.
const HTTP_MAX: usize = 100;
/// Requests that wait for a worker which is still making its next instance.
const QUEUE: &str = "1024";

/// Widths of a fan-out.
const fn out_branches(effort: Effort, touch: bool) -> &'static [usize] {
    match (effort, touch) {
        (Effort::Full, _) => &[10, 50, 100, 250, 500],
        (Effort::Quick, false) => &[10, 100, 500],
        (Effort::Quick, true) => &[100],
        (Effort::Smoke, _) => &[3],
    }
}

/// Parts of a fan-in.
const fn in_branches(effort: Effort, touch: bool) -> &'static [usize] {
    match (effort, touch) {
        (Effort::Quick, false) => &[10, 100],
        _ => out_branches(effort, touch),
    }
}

const fn turns(effort: Effort, branches: usize) -> Turns {
    let rounds = match branches {
        ..=100 => effort.pick(30, 6),
        _ => effort.pick(15, 3),
    };
    Turns { rounds, block: 1 }
}

fn out_name(branches: usize, touch: bool) -> String {
    format!("fanout-2MiB-{branches}{}", if touch { "-touch-all" } else { "-touch-none" })
}

/// Names of all entries of an experiment.
fn entries(
    effort: Effort,
    branches: fn(Effort, bool) -> &'static [usize],
    of: fn(usize, bool) -> Vec<String>,
) -> Vec<String> {
    let each = |touch| branches(effort, touch).iter().flat_map(move |one| of(*one, touch));
    [false, true].into_iter().flat_map(each).collect()
}

fn out_entries(branches: usize, touch: bool) -> Vec<String> {
    let name = out_name(branches, touch);
    vec![format!("{name}-call"), name]
}

fn in_entries(parts: usize, touch: bool) -> Vec<String> {
    let touch = if touch { "-touch-all" } else { "" };
    vec![format!("fanin-2MiB-{parts}{touch}-call")]
}

const fn job(verb: Verb, targets: Vec<String>, touch: bool, branches: usize) -> Job {
    Job { verb, targets, size: SIZE, made: Made::InPlace, touch, count: 1, branches }
}

fn run_out(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-fan-out")?;
    let fixture = Fixture::on(&scene);
    for touch in [false, true] {
        let branches = out_branches(session.effort, touch);
        let widest = branches.iter().copied().max().unwrap_or(0);
        let (name, guest) = if touch { TOUCH_ALL } else { TOUCH_NONE };
        let names: Vec<String> =
            (0..widest.div_ceil(WORKERS)).map(|number| format!("{name}-{number}")).collect();
        let wanted = wanted_of(branches, wanted, |branches| out_entries(branches, touch));
        if wanted.is_empty() {
            continue;
        }
        let workers = widest.min(WORKERS).to_string();
        for name in &names {
            fixture
                .callee((name, guest), &[("cwasi.concurrency", &workers), ("cwasi.queue", QUEUE)]);
        }
        for branches in wanted {
            let targets = names[..branches.div_ceil(WORKERS)].to_vec();
            session.case(&out_entries(branches, touch), |session| {
                measure_out(session, &fixture, targets, touch, branches)
            });
        }
        // Hundreds of workers that wait are not for the next cases to pay for.
        scene.remove_containers();
    }
    Ok(())
}

/// Those of which an entry was asked for.
fn wanted_of(
    all: &[usize],
    wanted: &[String],
    entries: impl Fn(usize) -> Vec<String>,
) -> Vec<usize> {
    let is_wanted = |one: &&usize| entries(**one).iter().any(|entry| wanted.contains(entry));
    all.iter().filter(is_wanted).copied().collect()
}

fn measure_out(
    session: &mut Session,
    fixture: &Fixture<'_>,
    targets: Vec<String>,
    touch: bool,
    branches: usize,
) -> Result<()> {
    let (functions, turns) = (targets.len(), turns(session.effort, branches));
    let job = job(Verb::FanOut, targets, touch, branches);
    let mut contestants =
        vec![Contestant { name: "ours", side: fixture.driver(&[])?.side, job: job.clone() }];
    let mut peers = vec![Peer::new(Baseline::UdsCopy), Peer::new(Baseline::UdsCopy).warm()];
    if branches <= HTTP_MAX {
        peers.push(Peer::new(Baseline::HttpLoopback).connections(branches));
    }
    for peer in peers {
        contestants.push(session.contestant(&peer.servers(branches), &job)?);
    }
    let one = session.contestant(&Peer::new(Baseline::UdsCopy), &job)?;
    contestants.push(Contestant { name: UDS_COPY_ONE, ..one });
    let measured = take(contestants, turns)?;
    let conditions = format!(
        "one payload of 2 MiB, made in a region and sealed inside the clock, to {branches} callees at a time: requests to \
         {functions} function(s), each in an instance of its own; as many of their worker processes (at most {WORKERS} each) take \
         part as are awake: one that is done with a short request takes the next; callee reads {}; until the last of them; \
         baselines have {branches} server processes that wait: uds-copy writes to one after the other, HTTP posts to all at a \
         time; {}",
        if touch { "all of it" } else { "nothing of it" },
        Session::turns_text(turns)
    );
    session.report.add_turns(&out_name(branches, touch), &conditions, &measured);
    Ok(())
}

fn run_in(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-fan-in")?;
    let fixture = Fixture::on(&scene);
    for touch in [false, true] {
        let (name, guest) =
            if touch { ("join-all", "bench_join_all") } else { ("join-none", "bench_join_none") };
        fixture.callee((name, guest), &[("cwasi.fan-in", "caller")]);
        let all = in_branches(session.effort, touch);
        for parts in wanted_of(all, wanted, |parts| in_entries(parts, touch)) {
            session.case(&in_entries(parts, touch), |session| {
                measure_in(session, &fixture, name, touch, parts)
            });
        }
    }
    Ok(())
}

fn measure_in(
    session: &mut Session,
    fixture: &Fixture<'_>,
    target: &str,
    touch: bool,
    parts: usize,
) -> Result<()> {
    let turns = turns(session.effort, parts);
    let job = job(Verb::FanIn, vec![target.to_owned()], touch, parts);
    let driver = fixture.driver(&[])?.side;
    let http = Peer::new(Baseline::HttpLoopback).connections(parts);
    let theirs = session.contestant(&http, &job)?;
    let measured = take(vec![Contestant { name: "ours", side: driver, job }, theirs], turns)?;
    let conditions = format!(
        "{parts} payloads of 2 MiB, each made in a region of its own and sealed inside the clock, sent at a time by one caller \
         as the parts of a group; the callee is run once with all of them and reads {}; until every part has its answer; \
         HTTP's are {parts} posts at a time on as many connections to one server, each answered for itself; {}",
        if touch { "all of them" } else { "nothing of them" },
        Session::turns_text(turns)
    );
    let case = in_entries(parts, touch).concat();
    session.report.add_calls(case.trim_end_matches("-call"), &conditions, &measured);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_of_a_fan_has_its_case_in_every_real_run() {
        for effort in [Effort::Full, Effort::Quick] {
            let mut names = (OUT.cases)(effort);
            names.extend((IN.cases)(effort));
            for bar in crate::report::BARS.iter().filter(|bar| bar.case.starts_with("fan")) {
                assert!(names.iter().any(|name| name == bar.case), "{effort:?} {}", bar.case);
            }
        }
    }
}
