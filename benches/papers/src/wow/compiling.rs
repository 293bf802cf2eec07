//! Section III-A4: what compiling costs a cold start, which WOW saves by compiling at the upload.

use anyhow::Result;
use cwasi_bench::fixture::stage;
use cwasi_testbed::scene::Scene;

use crate::exhibit::{Exhibit, Form as Drawn};
use crate::openwhisk::code::{Form, of, unknown};
use crate::openwhisk::platform::Platform;
use crate::openwhisk::{EXECUTOR, PROXY, platforms};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::runwasi;

use super::hello;

pub const GROUP: Group =
    Group { name: "WOW: compiling and loading", entries: &["wow-compiling"], run };

const ACTION: &str = "hash";
const COMPILES: &str = "first /init of a code";
const LOADS: &str = "another /init of it";
const SAYS_HELLO: &str = "a container that says hello";

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-compiling")?;
    let repeats = run.effort.pick(100, 10);
    let module = of(&run.programs, Form::Module, ACTION)?;
    #[expect(clippy::cast_precision_loss, reason = "kilobytes")]
    let size = module.len() as f64 / 1e3;
    let mut series = Vec::new();
    for platform in platforms(run, &scene, 1, &[ACTION])? {
        if !platform.name.starts_with("CWASI") {
            continue;
        }
        let (mut first, mut again) = (Vec::new(), Vec::new());
        for number in 0..repeats as u64 {
            let code = unknown(&module, number);
            first.push(init(&scene, &platform, &format!("first-{number}"), &code)?);
            again.push(init(&scene, &platform, &format!("again-{number}"), &code)?);
        }
        series.push(Series::new(&platform.name, COMPILES, "ms", first));
        series.push(Series::new(&platform.name, LOADS, "ms", again));
    }
    series.extend(hello::series(run, &scene, SAYS_HELLO, repeats)?);
    let conditions = format!(
        "The request `/init` alone, {repeats} times. The first one delivers code that no cache knows: the module of `{ACTION}` ({size:.0} \
         KB) with a section that differs each time, so it is compiled. The second one delivers the same code. The paper’s module \
         has 1.6 MB. The containers: `ctr run --rm`, in turns, until a program of the image has ended: a native one that says hello in runc, a \
         module with an empty `main` in all other runtimes, compiled before. {} \
         {EXECUTOR} and containers are as in Figure 4b; {PROXY} and others compile nothing.",
        runwasi::ABOUT
    );
    Ok(vec![Exhibit::new("wow-compiling", Drawn::Table, conditions, series).published(&[
        ("wasmtime, compiling", COMPILES, 35.0),
        ("wasmtime, compiling for speed", COMPILES, 40.0),
        ("Docker", SAYS_HELLO, 452.0),
    ])])
}

/// Milliseconds of the request that delivers this code.
fn init(scene: &Scene, platform: &Platform, id: &str, code: &[u8]) -> Result<f64> {
    platform.create(scene, id, ACTION)?.with_code(code).init()
}
