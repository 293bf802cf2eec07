//! Figure 6: response times of a mix as Azure's users have it. 90 % of the requests are for two functions, the others
//! for 60, and not all of them stay warm.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;

use serde_json::Value;

use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::platform::{Action, Platform};
use crate::openwhisk::{ABOUT, hashing_for, platforms, waiting};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::load::{Target, at_once, millis};

pub const GROUP: Group = Group { name: "WOW: an Azure-like mix", entries: &["wow-figure-6"], run };

/// Functions that most requests are for, and all functions.
const HOT: usize = 2;
const FUNCTIONS: usize = 62;
/// Clients, as in the paper.
const CLIENTS: usize = 4;
/// Actions that stay warm.
const WARM: usize = 16;

/// An action and its parameters.
type Work = (&'static str, Value);

const fn requests(effort: Effort) -> usize {
    match effort {
        Effort::Full => 2000,
        Effort::Quick => 200,
        Effort::Smoke => 8,
    }
}

/// Which function each request is for, the same for all sides.
fn requested(count: usize) -> Vec<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % limit).unwrap_or_default()
    };
    let one =
        |_| if below(10) < 9 { below(HOT as u64) } else { HOT + below((FUNCTIONS - HOT) as u64) };
    (0..count).map(one).collect()
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-azure")?;
    // Half of the functions are CPU-bound.
    let work = [("hash", hashing_for(run.effort, 100.0)?), ("net", waiting(run.effort, 200))];
    let requested = requested(requests(run.effort));
    let (mut series, mut cold) = (Vec::new(), Vec::new());
    for (side, platform) in platforms(run, &scene, CLIENTS, &["hash", "net"])?.iter().enumerate() {
        let name = format!("azure-{side}");
        // Compiles the modules.
        for (action, _) in &work {
            drop(platform.start(&scene, &format!("{name}-{action}"), action)?);
        }
        let pool = Pool::new(&scene, platform, &name);
        let next = AtomicUsize::new(0);
        let client = |_: &usize| -> Result<Vec<f64>> {
            let mut samples = Vec::new();
            while let Some(number) = requested.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let evicted = pool.ask(*number, &work[number % work.len()])?;
                samples.push(millis(started));
                drop(evicted);
            }
            Ok(samples)
        };
        let samples = at_once(&(0..CLIENTS).collect::<Vec<_>>(), client)?.concat();
        cold.push(format!("{} {}", platform.name, pool.starts.load(Ordering::Relaxed)));
        series.push(Series::new(&platform.name, "all", "ms", samples));
    }
    let conditions = format!(
        "{} requests of {CLIENTS} clients: 90 % for {HOT} functions, the others for one of {} at random, the same for all sides. Half \
         of the functions run hash with {}, half net with {}. At most {WARM} actions are kept: a request for another function starts \
         its container and delivers its code, after which the action that was used longest ago is removed. Cold starts: {}. {ABOUT}",
        requested.len(),
        FUNCTIONS - HOT,
        work[0].1,
        work[1].1,
        cold.join(", ")
    );
    Ok(vec![Exhibit::new("wow-figure-6", Form::Ecdf, conditions, series)])
}

/// Actions of one side.
struct Pool<'a> {
    scene: &'a Scene,
    platform: &'a Platform,
    name: &'a str,
    kept: Mutex<Vec<Kept<'a>>>,
    changed: Condvar,
    starts: AtomicUsize,
}

/// An action that runs or starts, in the order of its last use.
struct Kept<'a> {
    number: usize,
    /// Requests that use it.
    users: usize,
    /// None while it starts.
    action: Option<Action<'a>>,
}

impl<'a> Pool<'a> {
    fn new(scene: &'a Scene, platform: &'a Platform, name: &'a str) -> Self {
        let (kept, changed) = (Mutex::default(), Condvar::new());
        Self { scene, platform, name, kept, changed, starts: AtomicUsize::new(0) }
    }

    /// Asks a function, which is started if it does not run. Gives back the action that there is no room for.
    fn ask(&self, number: usize, work: &Work) -> Result<Option<Kept<'a>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let target: Option<Target> = loop {
            match kept.iter().position(|one| one.number == number) {
                Some(at) if kept[at].action.is_none() => {
                    kept = self.changed.wait(kept).unwrap_or_else(PoisonError::into_inner);
                }
                Some(at) => {
                    let mut one = kept.remove(at);
                    one.users += 1;
                    let target = one.action.as_ref().map(|action| action.activation(&work.1));
                    kept.push(one);
                    break target;
                }
                None => {
                    kept.push(Kept { number, users: 1, action: None });
                    break None;
                }
            }
        };
        drop(kept);
        let asked = match target {
            Some(target) => target.ask().map(|_took| None),
            None => self.start(number, work).map(Some),
        };
        if asked.is_err() {
            // Those that wait for it try for themselves.
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|one| one.number != number);
            self.changed.notify_all();
        }
        Ok(self.release(number, asked?))
    }

    fn start(&self, number: usize, work: &Work) -> Result<Action<'a>> {
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}-{start}", self.name);
        let action = self.platform.start(self.scene, &id, work.0)?;
        action.activation(&work.1).ask()?;
        Ok(action)
    }

    /// Ends a use; as [`Self::ask`].
    fn release(&self, number: usize, started: Option<Action<'a>>) -> Option<Kept<'a>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = kept.iter_mut().find(|one| one.number == number) {
            one.users -= 1;
            one.action = started.or(one.action.take());
        }
        self.changed.notify_all();
        let idle = kept.iter().position(|one| one.users == 0);
        idle.filter(|_| kept.len() > WARM).map(|at| kept.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_requests_are_for_two_functions_and_some_for_each_kind() {
        let requested = requested(4000);
        let hot = requested.iter().filter(|number| **number < HOT).count();
        assert!((3500..3700).contains(&hot), "{hot}");
        assert!(requested.iter().all(|number| *number < FUNCTIONS));
        let different: std::collections::BTreeSet<_> = requested.iter().collect();
        assert!(different.len() > 55, "{}", different.len());
    }
}
