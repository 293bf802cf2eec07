//! Cases of one function that calls another, one call after another.

use std::path::Path;

use anyhow::{Context as _, Result};
use cwasi_bench_protocol::{Job, Made, Verb};
use cwasi_testbed::redis::Redis;

use super::Group;
use crate::fixture::{Fixture, TOUCH_ALL, TOUCH_NONE, stage, unlimited_redis};
use crate::peers::{Baseline, HTTP_GUESTS, Peer, compile_http_guests};
use crate::placement::{BusyLoops, Placement};
use crate::plan::{Effort, MIB, size_name};
use crate::session::Session;
use crate::turns::{Contestant, take};

/// See the file's head.
pub const GROUP: Group = Group {
    name: "sequential",
    about: "one function calls another",
    cases: |effort| cases(effort).iter().flat_map(Case::entries).collect(),
    run,
};

/// Workers of a callee: while one makes its next instance, another takes the next call.
pub const WORKERS: &str = "4";
/// Payloads up to here travel inside the frame: there is no place to make them in.
const INLINE_MAX: usize = 65_536;
/// Payloads above need a Redis with other limits than its default ones.
const REDIS_DEFAULT_MAX: usize = 28 * MIB;

/// One case: its payloads, and where both ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    size: usize,
    made: Made,
    touch: bool,
    placement: Placement,
    /// Beside processes that keep every processor busy.
    busy: bool,
}

impl Case {
    /// Name without the `-call` of the whole call's entry.
    fn name(&self) -> String {
        let touch = if self.touch { "-touch-all" } else { "-touch-none" };
        let made = match self.made {
            Made::InPlace => "-inplace",
            Made::Vector => "-copied",
        };
        let (made, touch) = match self.size {
            64 => ("", ""),
            ..=INLINE_MAX => ("", touch),
            _ => (made, touch),
        };
        let busy = if self.busy { "-busy" } else { "" };
        format!("local-{}{made}{touch}{}{busy}", size_name(self.size), self.placement.suffix())
    }

    fn entries(&self) -> Vec<String> {
        let name = self.name();
        vec![format!("{name}-call"), name]
    }

    const fn callee(&self) -> &'static str {
        if self.touch { TOUCH_ALL.0 } else { TOUCH_NONE.0 }
    }

    fn job(&self, count: usize) -> Job {
        Job {
            verb: Verb::Call,
            targets: vec![self.callee().to_owned()],
            size: self.size,
            made: self.made,
            touch: self.touch,
            count,
            branches: 1,
        }
    }

    /// `wasmedge_guests` is a folder.
    fn peers(&self, redis: &str, wasmedge_guests: &str) -> Vec<Peer> {
        let mut kinds = vec![Peer::new(Baseline::UdsCopy), Peer::new(Baseline::UdsCopy).warm()];
        kinds.push(Peer::new(Baseline::HttpLoopback));
        kinds.push(Peer::new(Baseline::HttpWasmedge).through(wasmedge_guests));
        if self.size <= INLINE_MAX {
            kinds.push(Peer::new(Baseline::UdsPingpong));
        } else {
            kinds.push(Peer::new(Baseline::Memcpy));
        }
        kinds.push(Peer::new(Baseline::Redis).through(redis));
        kinds.into_iter().map(|peer| peer.at(self.placement)).collect()
    }

    fn conditions(&self) -> String {
        let made = match (self.size, self.made) {
            (..=INLINE_MAX, _) => "inside the frame",
            (_, Made::InPlace) => "made in a region, sealed inside the clock",
            (_, Made::Vector) => "in an ordinary vector, copied by the host inside the clock",
        };
        let touch =
            if self.touch { "callee reads all of it" } else { "callee reads nothing of it" };
        let limits = match self.size {
            ..=REDIS_DEFAULT_MAX => "",
            _ => "; Redis without its default limit, which would cut the subscriber off",
        };
        let busy = if self.busy { "; beside a busy loop for each processor" } else { "" };
        format!(
            "{} payload {made}, {touch}; a fresh or renewed instance for each request, cwasi.concurrency={WORKERS}; {}{busy}{limits}",
            size_name(self.size),
            self.placement
        )
    }
}

struct Others<'a> {
    redis: Redis,
    wasmedge_guests: &'a Path,
}

/// The cases of a run.
fn cases(effort: Effort) -> Vec<Case> {
    let placements = [Placement::Default, Placement::SameCore, Placement::OtherCore];
    let sizes: &[usize] = match effort {
        Effort::Full => &[64, INLINE_MAX, 2 * MIB, 10 * MIB, 50 * MIB, 100 * MIB],
        _ => &[64, INLINE_MAX, 2 * MIB, 100 * MIB],
    };
    let mut cases = Vec::new();
    for &size in sizes {
        for made in [Made::InPlace, Made::Vector] {
            for touch in [false, true] {
                let case = |placement| Case { size, made, touch, placement, busy: false };
                cases.extend(placements.map(case));
                cases.push(Case { busy: true, ..case(Placement::Default) });
            }
        }
    }
    cases.retain(|case| {
        let copied = case.made == Made::Vector;
        let placed = case.placement != Placement::Default;
        match case.size {
            64 => !copied && !case.touch,
            _ if case.busy => false,
            INLINE_MAX => !copied && !placed && (case.touch || effort == Effort::Full),
            _ if effort == Effort::Full => !placed || (!copied && case.size != 50 * MIB),
            _ => !placed && (!copied || case.touch),
        }
    });
    cases
}

fn run(session: &mut Session, wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-sequential")?;
    let fixture = Fixture::on(&scene);
    let guests = tempfile::tempdir()?;
    compile_http_guests(&session.programs, guests.path(), HTTP_GUESTS)?;
    let others = Others { redis: unlimited_redis(), wasmedge_guests: guests.path() };
    for callee in [TOUCH_NONE, TOUCH_ALL] {
        fixture.callee(callee, &[("cwasi.concurrency", WORKERS)]);
    }
    for case in cases(session.effort) {
        if case.entries().iter().any(|name| wanted.contains(name)) {
            session.case(&case.entries(), |session| measure(session, &fixture, &others, case));
        }
    }
    Ok(())
}

fn measure(
    session: &mut Session,
    fixture: &Fixture<'_>,
    others: &Others<'_>,
    case: Case,
) -> Result<()> {
    let turns = session.effort.turns(case.size);
    let job = case.job(turns.block);
    let driver = fixture.driver(&[])?;
    fixture.place(&driver, &[case.callee()], case.placement)?;
    let mut contestants = vec![Contestant { name: "ours", side: driver.side, job: job.clone() }];
    let guests = others.wasmedge_guests.to_str().context("paths are UTF-8")?;
    for peer in case.peers(&others.redis.url(), guests) {
        contestants.push(session.contestant(&peer, &job)?);
    }
    let busy = case.busy.then(BusyLoops::start).transpose()?;
    let measured = take(contestants, turns)?;
    drop(busy);
    let conditions = format!("{}; {}", case.conditions(), Session::turns_text(turns));
    session.report.add_turns(&case.name(), &conditions, &measured);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_local_bar_has_its_case_in_every_real_run() {
        for effort in [Effort::Full, Effort::Quick] {
            let names: Vec<String> = cases(effort).iter().flat_map(Case::entries).collect();
            for bar in crate::report::BARS.iter().filter(|bar| bar.case.starts_with("local-")) {
                assert!(names.iter().any(|name| name == bar.case), "{effort:?} {}", bar.case);
            }
        }
    }

    #[test]
    fn no_two_cases_share_a_name() {
        let cases = cases(Effort::Full);
        let names: BTreeSet<String> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
        assert!(
            names.contains("local-64B-other-core")
                && names.contains("local-10MiB-copied-touch-all")
        );
    }
}
