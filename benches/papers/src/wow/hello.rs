//! A container that ends at once: one that says hello in runc, a WASI module in our engines and in runwasi's shims.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::fixture::guest;
use cwasi_testbed::run::Run as ContainerRun;
use cwasi_testbed::scene::{Scene, guests_dir};

use crate::run::Run;
use crate::series::Series;
use crate::sides::images::{MODULE, PROGRAM, RUNC};
use crate::sides::load::millis;
use crate::sides::runwasi::{self, Shim};

/// Guest that ends at once, and imports nothing of ours.
const GUEST: &str = "bench-noop";

/// A side and what it starts.
struct Program {
    side: String,
    run: Box<dyn Fn(&str) -> ContainerRun>,
}

/// Milliseconds of `ctr run --rm` of each side, in turns after one that compiles the module.
///
/// # Errors
/// When an image is missing, or a program fails.
pub fn series(run: &Run, scene: &Scene, case: &str, repeats: usize) -> Result<Vec<Series>> {
    let programs = programs(run, scene)?;
    let mut samples = vec![Vec::new(); programs.len()];
    for round in 0..=repeats {
        for (number, (program, samples)) in programs.iter().zip(&mut samples).enumerate() {
            let took = says_hello(scene, program, &format!("hello-{number}-{round}"))?;
            if round > 0 {
                samples.push(took);
            }
        }
    }
    let all = programs.iter().zip(samples);
    Ok(all.map(|(program, samples)| Series::new(&program.side, case, "ms", samples)).collect())
}

fn programs(run: &Run, scene: &Scene) -> Result<Vec<Program>> {
    let native = run.own_image(scene)?;
    let module = scene.import_module("says-hello", &guest(&run.programs, GUEST)?);
    let namespace = scene.namespace.clone();
    let new = move |image: &str| {
        let (namespace, image) = (namespace.clone(), image.to_owned());
        move |id: &str| ContainerRun::new(&namespace, &image, id)
    };
    let in_runc = new(&native);
    let mut programs = vec![Program {
        side: "runc".to_owned(),
        run: Box::new(move |id| in_runc(id).runtime(RUNC).args([PROGRAM, "--help"])),
    }];
    for engine in run.engines() {
        let ours = new(&module);
        programs.push(Program {
            side: format!("CWASI {engine}"),
            run: Box::new(move |id| ours(id).annotation("cwasi.engine", engine).args([MODULE])),
        });
    }
    let shims = Shim::all();
    if !shims.is_empty() {
        let file = guests_dir(&run.programs).join(format!("{GUEST}.wasm"));
        let image = runwasi::import(scene, "says-hello", &file)?;
        for shim in shims {
            let (theirs, runtime) = (new(&image), shim.runtime());
            programs.push(Program {
                side: shim.side.to_owned(),
                run: Box::new(move |id| theirs(id).runtime(&runtime).args([MODULE])),
            });
        }
    }
    Ok(programs)
}

fn says_hello(scene: &Scene, program: &Program, id: &str) -> Result<f64> {
    let mut command = (program.run)(id).command(&scene.containerd, false);
    let began = Instant::now();
    let output = command.stdin(Stdio::null()).output().context("ctr run")?;
    let took = millis(began);
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    ensure!(
        output.status.success(),
        "{} in a container: {}, {}",
        program.side,
        output.status,
        String::from_utf8_lossy(&said)
    );
    Ok(took)
}
