//! OpenWhisk's protocol, at which WOW and the thesis measure: the sides that speak it, their actions and requests.
//!
//! - [`platform`]: what starts and asks actions; [`executor`]: the process of `cwasi openwhisk`.
//! - [`code`]: what `/init` delivers; [`messages`]: bodies of requests.
//! - [`native`]: the server of native actions, which this program is in its container.

pub mod code;
pub mod executor;
pub mod messages;
pub mod native;
pub mod platform;

use std::time::Instant;

use anyhow::{Context as _, Result};
use cwasi_bench::plan::Effort;
use cwasi_testbed::scene::{GUESTS, Scene};
use serde_json::{Value, json};

use crate::peers;
use crate::run::Run;
use crate::sides::door::Function;
use crate::sides::images::PROGRAM;
use crate::sides::load::millis;
use code::{Bodies, Form};
use executor::Executor;
use platform::{Kind, Platform};

/// Our process without containers, with the API of WOW's executor.
pub const EXECUTOR: &str = "CWASI executor";
/// WOW's own.
pub const WOW: &str = "WOW executor";
/// A container that starts the action's program for each activation, as OpenWhisk's own for native actions does.
pub const PROXY: &str = "native proxy in runc";
/// A container whose server is the action.
pub const SERVER: &str = "native server in runc";
/// What is known of all sides, for the conditions.
pub const ABOUT: &str = "Code comes by `/init` and work by `/run` of OpenWhisk’s protocol, and each action is one source. CWASI \
    executor: `cwasi openwhisk`, which has the API of WOW’s executor and no containers. CWASI with an engine: containers with \
    `cwasi.protocol=openwhisk`. Native proxy: a server in a container of runc that starts the action’s program for each activation, \
    as OpenWhisk’s dockerskeleton does, but written with hyper in place of Python. Native server: the action is part of the server, \
    and its `/init` does nothing, which no platform offers: a bound. WOW executor, if this machine has it: WOW’s own, with its own actions that were compiled for \
    it. Clients make a connection for each request.";
/// Rounds of hashing whose time says how many take a certain time.
const PROBED: u64 = 20_000;
/// What is hashed.
const INPUT: &str = "cwasi";

/// All sides with the code of these actions; `concurrency` activations run at a time in one container.
///
/// # Errors
/// When code or an image is missing, or an executor does not start.
pub fn platforms(
    run: &Run,
    scene: &Scene,
    concurrency: usize,
    actions: &[&'static str],
) -> Result<Vec<Platform>> {
    let bodies = |form: Form| code::bodies(&run.programs, form, actions);
    let mut platforms = ours(run, concurrency, &bodies(Form::Module)?)?;
    platforms.extend(wow(actions)?);
    let image = run.own_image(scene)?;
    let native = |side, verb| Kind::Container(Function::native(side, &image, &[PROGRAM, verb]));
    let (proxy, server) = (native(PROXY, "action-proxy"), native(SERVER, "action-server"));
    platforms.push(Platform::new(PROXY, proxy, bodies(Form::Program)?));
    platforms.push(Platform::new(SERVER, server, bodies(Form::None)?));
    Ok(platforms)
}

/// Our sides with this code, for one activation at a time.
///
/// # Errors
/// When an executor does not start.
pub fn with_modules(run: &Run, bodies: &Bodies) -> Result<Vec<Platform>> {
    ours(run, 1, bodies)
}

/// WOW's own executor, if this machine has it with the code of these actions.
fn wow(actions: &[&'static str]) -> Result<Option<Platform>> {
    let Some(program) = peers::find(peers::WOW_EXECUTOR) else { return Ok(None) };
    let body = |action: &&'static str| {
        let code = peers::beside(&program, &format!("wow-{action}.zip"))?;
        Some((*action, messages::init(action, &code)))
    };
    let Some(bodies) = actions.iter().map(body).collect() else { return Ok(None) };
    let executor = Executor::start_wow(&program)?;
    Ok(Some(Platform::new(WOW, Kind::Executor(executor), bodies)))
}

fn ours(run: &Run, concurrency: usize, bodies: &Bodies) -> Result<Vec<Platform>> {
    let executor = Executor::start_ours(&run.programs)?;
    let mut platforms = vec![Platform::new(EXECUTOR, Kind::Executor(executor), bodies.clone())];
    for engine in run.engines() {
        let function = container(engine, concurrency);
        let name = function.side.clone();
        platforms.push(Platform::new(&name, Kind::Container(function), bodies.clone()));
    }
    Ok(platforms)
}

/// A container of ours without code, for this engine.
fn container(engine: &str, concurrency: usize) -> Function {
    let function = Function::ours(&format!("CWASI {engine}"), GUESTS, engine)
        .with("cwasi.protocol", "openwhisk")
        .with("cwasi.allow", "gateway")
        .with("cwasi.concurrency", &concurrency.to_string());
    Function { args: vec!["none"], ..function }
}

/// Parameters of `hash`.
#[must_use]
pub fn hashing(iterations: u64) -> Value {
    json!({ "iterations": iterations, "input": INPUT })
}

/// Parameters with which `hash` takes a native program about this time, in ms; little in a smoke test.
///
/// # Errors
/// Never for this action.
pub fn hashing_for(effort: Effort, time: f64) -> Result<Value> {
    if effort == Effort::Smoke {
        return Ok(hashing(100));
    }
    let action = bench_actions::named("hash").context("an action of WOW")?;
    let probe = || -> Result<f64> {
        let started = Instant::now();
        action(&hashing(PROBED)).map_err(anyhow::Error::msg)?;
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
    Ok(hashing(rounds))
}

/// Parameters of `net` and `sleep`; little in a smoke test.
#[must_use]
pub fn waiting(effort: Effort, milliseconds: u64) -> Value {
    json!({ "milliseconds": if effort == Effort::Smoke { 20 } else { milliseconds } })
}
