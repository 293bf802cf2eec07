//! The sides that run WOW's and the thesis' actions: ours with each engine, and the native server.

use std::time::Instant;

use anyhow::Result;
use cwasi_bench::fixture::guest;
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::Scene;

use crate::run::Run;
use crate::sides::door::Function;
use crate::sides::images::PROGRAM;
use crate::sides::load::millis;

/// Name of the native side.
pub const NATIVE: &str = "native in runc";
/// What is known of all sides, for the conditions.
pub const ABOUT: &str = "The action is one source: a core module for each engine, compiled ahead, and a native hyper server in a \
    container of runc. Both listen at a port of the machine; clients make a connection for each request.";
/// Rounds whose time says how many take a certain time.
const PROBED: u64 = 20_000;

/// Ours with each engine, then the native one; `workers` requests run at a time.
///
/// # Errors
/// When an image cannot be made.
pub fn sides(run: &Run, scene: &Scene, workers: usize) -> Result<Vec<Function>> {
    let image = scene.import_module("actions", &guest(&run.programs, "papers_actions")?);
    let workers = workers.to_string();
    let ours = |engine: &&str| {
        let function = Function::ours(&format!("CWASI {engine}"), &image, engine);
        function.with("cwasi.concurrency", &workers)
    };
    let mut sides: Vec<Function> = run.engines().iter().map(ours).collect();
    let server = [PROGRAM, "action-server"];
    sides.push(Function::native(NATIVE, &run.own_image(scene)?, &server));
    Ok(sides)
}

/// A query for hashing that takes a native process about this time, in ms; little in a smoke test.
///
/// # Errors
/// Never for this action.
pub fn hashing(effort: Effort, time: f64) -> Result<String> {
    if effort == Effort::Smoke {
        return Ok("hash=100".to_owned());
    }
    let probe = || -> Result<f64> {
        let started = Instant::now();
        bench_actions::answer(&format!("hash={PROBED}")).map_err(anyhow::Error::msg)?;
        Ok(millis(started))
    };
    let fastest = probe()?.min(probe()?).min(probe()?);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "millions of rounds"
    )]
    let rounds = (PROBED as f64 * time / fastest) as u64;
    Ok(format!("hash={rounds}"))
}
