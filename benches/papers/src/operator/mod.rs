//! The operator paper: nine functions, as WebAssembly and as native servers of the same source.

mod published;
mod services;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::fixture::stage;
use cwasi_bench::peers::WasmtimeServe;
use cwasi_bench::plan::Effort;
use cwasi_testbed::paths::checkout;
use cwasi_testbed::scene::Scene;

use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::door::{Door, Function};
use crate::sides::images::{Archive, PROGRAM};
use crate::sides::load::{Target, millis, paced, serial};
use crate::sides::runwasi::{self, Shim};
use published::{FUNCTIONS, Published, mean};
use services::Services;

/// All measurements.
pub const GROUPS: &[Group] = &[Group {
    name: "operator paper: nine functions",
    entries: &[
        "operator-serial",
        "operator-starts",
        "operator-first",
        "operator-concurrent",
        "operator-images",
    ],
    run,
}];

/// As in the paper: components in Rust, and modules that TinyGo compiles.
const OURS: &str = "CWASI";
/// The modules in Go by the standard compiler.
const STANDARD_GO: &str = "CWASI, standard Go";
const NATIVE: &str = "native in runc";
const SERVE: &str = WasmtimeServe::NAME;
/// The paper's clients, and requests of each in a second.
const CLIENTS: usize = 5;
const RATE: u32 = 5;
/// Turns that a side's serial time is cut into.
const PARTS: u32 = 2;

/// How long each side is asked serially and concurrently, and how often it starts.
struct Amounts {
    serial: Duration,
    concurrent: Duration,
    starts: usize,
}

const fn amounts(effort: Effort) -> Amounts {
    let (serial, concurrent, starts) = match effort {
        Effort::Full => (300_000, 60_000, 100),
        Effort::Quick => (2_000, 4_000, 5),
        Effort::Smoke => (1, 1, 1),
    };
    Amounts {
        serial: Duration::from_millis(serial),
        concurrent: Duration::from_millis(concurrent),
        starts,
    }
}

/// The series of each exhibit.
#[derive(Default)]
struct Found {
    serial: Vec<Series>,
    starts: Vec<Series>,
    first: Vec<Series>,
    concurrent: Vec<Series>,
    images: Vec<Series>,
}

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let scene = stage(&run.programs, "papers-functions")?;
    let services = Services::start()?;
    let (mut found, amounts) = (Found::default(), amounts(run.effort));
    for function in &FUNCTIONS {
        measure(&scene, function, &services, &amounts, &mut found)
            .with_context(|| function.name.to_owned())?;
    }
    let stored = services.stored()?;
    Ok(exhibits(found, &amounts, stored))
}

/// Ours, the native one, and runwasi's.
fn sides(
    scene: &Scene,
    function: &Published,
    services: &Services,
    found: &mut Found,
) -> Result<Vec<Function>> {
    let Published { name, .. } = function;
    let folder = tempfile::tempdir()?;
    let mut modules = vec![(OURS, module(function))];
    if !function.is_component {
        modules.push((STANDARD_GO, format!("{name}.wasm")));
    }
    let mut sides = Vec::new();
    for (side, file) in modules {
        let archive =
            Archive::module(folder.path(), &file.replace(['/', '.'], "-"), &built(&file)?)?;
        found.images.push(size(side, name, &archive)?);
        let ours = Function::ours(side, &archive.import(scene), "wasmtime");
        sides.push(ours.with("cwasi.concurrency", &CLIENTS.to_string()));
    }
    let server = Archive::native(folder.path(), &format!("{name}-native"), &built(name)?)?;
    found.images.push(size(NATIVE, name, &server)?);
    sides.push(Function::native(NATIVE, &server.import(scene), &[PROGRAM]));
    if let Some((variable, url, address)) = services.of(name) {
        let allowed = |side: Function| side.env(variable, &url).with("cwasi.network", &address);
        sides = sides.into_iter().map(allowed).collect();
    } else if function.is_component
        && let Some(shim) = Shim::wasmtime()
    {
        let image = runwasi::import(scene, name, &built(&module(function))?)?;
        sides.push(Function::runwasi(shim, &image));
    }
    Ok(sides)
}

/// The file of what the paper compiled.
fn module(function: &Published) -> String {
    let folder = if function.is_component { "" } else { "tinygo/" };
    format!("{folder}{}.wasm", function.name)
}

fn size(side: &str, name: &str, archive: &Archive) -> Result<Series> {
    #[expect(clippy::cast_precision_loss, reason = "megabytes")]
    let size = archive.length()? as f64 / 1e3;
    Ok(Series::new(side, name, "KB", vec![size]))
}

/// A file that `scripts/functions.sh` builds.
fn built(file: &str) -> Result<PathBuf> {
    let path = checkout().join("target/functions").join(file);
    let missing =
        || format!("{} was not built: scripts/functions.sh, and with --tinygo", path.display());
    path.exists().then(|| path.clone()).with_context(missing)
}

/// All sides give the same answer: random numbers are the same for one seed.
fn compare(query: &str, functions: &[Function], doors: &[Door<'_>]) -> Result<()> {
    let query = format!("{query}&seed=1");
    let mut answers = Vec::new();
    for (function, door) in functions.iter().zip(doors) {
        answers.push((function.side.as_str(), door.target(&query).body()?));
    }
    let native = answers.iter().find(|(side, _)| *side == NATIVE);
    let (_, expected) = native.context("there is a native side")?;
    for (side, answer) in &answers {
        ensure!(answer == expected, "{side} answers ?{query} otherwise than {NATIVE}");
    }
    Ok(())
}

fn measure(
    scene: &Scene,
    function: &Published,
    services: &Services,
    amounts: &Amounts,
    found: &mut Found,
) -> Result<()> {
    let Published { name, query, .. } = function;
    let functions = sides(scene, function, services, found)?;
    starts(scene, function, &functions, amounts, found)?;
    let opened = functions
        .iter()
        .enumerate()
        .map(|(number, side)| side.open(scene, &format!("{name}-{number}"), query));
    let doors: Vec<Door<'_>> = opened.collect::<Result<_>>()?;
    compare(query, &functions, &doors)?;
    let mut targets: Vec<(&str, Target)> = functions
        .iter()
        .zip(&doors)
        .map(|(side, door)| (side.side.as_str(), door.target(query)))
        .collect();
    let served = serve(function, services)?;
    if let Some(served) = &served {
        let address = served.address();
        let address = address.trim_end_matches('/').parse().context("an address")?;
        targets.push((SERVE, Target::new(address, query)));
    }
    let mut samples = vec![Vec::new(); targets.len()];
    for part in 0..=PARTS {
        for ((_, target), samples) in targets.iter().zip(&mut samples) {
            // A short part warms up.
            let time = if part == 0 { amounts.serial / 20 } else { amounts.serial / PARTS };
            let found = serial(target, time)?;
            if part > 0 {
                samples.extend(found);
            }
        }
    }
    for ((side, target), samples) in targets.iter().zip(samples) {
        found.serial.push(Series::new(side, name, "ms", samples));
        let concurrent = paced(target, CLIENTS, RATE, amounts.concurrent)?;
        found.concurrent.push(Series::new(side, name, "ms", concurrent));
    }
    Ok(())
}

/// `wasmtime serve` with a component.
fn serve(function: &Published, services: &Services) -> Result<Option<WasmtimeServe>> {
    if !function.is_component {
        return Ok(None);
    }
    let options = match services.of(function.name) {
        Some((variable, url, _)) => {
            vec!["-Sinherit-network".to_owned(), "--env".to_owned(), format!("{variable}={url}")]
        }
        None => Vec::new(),
    };
    let component = checkout().join(format!("target/functions/{}.wasm", function.name));
    WasmtimeServe::start_with(&component, &options)
}

fn starts(
    scene: &Scene,
    function: &Published,
    functions: &[Function],
    amounts: &Amounts,
    found: &mut Found,
) -> Result<()> {
    let Published { name, query, .. } = function;
    let mut samples = vec![[Vec::new(), Vec::new()]; functions.len()];
    for round in 0..=amounts.starts {
        for (number, (side, samples)) in functions.iter().zip(&mut samples).enumerate() {
            let started = Instant::now();
            let door = side.start(scene, &format!("{name}-{number}-{round}"))?;
            let took = millis(started);
            let first = door.first(query)?;
            // The first one compiles the module.
            if round > 0 {
                samples[0].push(took);
                samples[1].push(first);
            }
        }
    }
    for (side, [starts, first]) in functions.iter().zip(samples) {
        found.starts.push(Series::new(&side.side, name, "ms", starts));
        found.first.push(Series::new(&side.side, name, "ms", first));
    }
    Ok(())
}

fn exhibits(found: Found, amounts: &Amounts, stored: u64) -> Vec<Exhibit> {
    let about = format!(
        "One source of each function: a component (Rust) or module (Go), compiled ahead and run by wasmtime, with an instance as \
         new for each request; a native server in a container of runc. {OURS} has Go’s modules by TinyGo, with the options of the \
         paper’s artifact, {STANDARD_GO} by the compiler of the native servers. All answer one query equally. A connection for \
         each request. {SERVE}: the components, if the machine has the program. {} The wasmtime shim gives components no \
         sockets, so it has not the two functions that ask others. {} All sides stored {stored} rows.",
        runwasi::ABOUT,
        Services::about()
    );
    let of = |text: &str| format!("{text} {about}");
    let rounds = amounts.starts;
    let means = |of: fn(&Published) -> [[f64; 2]; 2]| -> Vec<(&'static str, &'static str, f64)> {
        let both = |function: &Published| {
            let [spin, openfaas] = of(function).map(mean);
            [
                ("Spin, SD by CV", function.name, spin),
                ("OpenFaaS, SD by CV", function.name, openfaas),
            ]
        };
        FUNCTIONS.iter().flat_map(both).collect()
    };
    let images = FUNCTIONS.iter().flat_map(|function| {
        let [spin, openfaas] = function.images;
        [("Spin", function.name, spin), ("OpenFaaS", function.name, openfaas)]
    });
    let images: Vec<_> = images.collect();
    let serial = of(&format!("One client, {:?} for each side in {PARTS} turns.", amounts.serial));
    let starts = of(&format!(
        "`ctr run --detach`, {rounds} times in turns; images are on the node, modules compiled before."
    ));
    let first = of(&format!(
        "The first request after the container has started and listens, {rounds} times in turns. What a server needs from \
         the end of `ctr run` until it listens is neither here nor in Figure 4."
    ));
    let concurrent = of(&format!(
        "{CLIENTS} clients with {RATE} requests a second at most, {:?} for each side.",
        amounts.concurrent
    ));
    let sizes = of(
        "The OCI archive of each image, its layer compressed. Native images here have the program and the libraries that \
        it needs, if any, and no base: the paper’s had OpenFaaS’ templates, debian-slim and alpine.",
    );
    vec![
        Exhibit::new("operator-serial", Form::Boxes, serial, found.serial)
            .published(&means(|function| function.serial))
            .tested(OURS),
        Exhibit::new("operator-starts", Form::Boxes, starts, found.starts).tested(OURS),
        Exhibit::new("operator-first", Form::Boxes, first, found.first).tested(OURS),
        Exhibit::new("operator-concurrent", Form::Boxes, concurrent, found.concurrent)
            .published(&means(|function| function.concurrent))
            .tested(OURS),
        Exhibit::new("operator-images", Form::Table, sizes, found.images).published(&images),
    ]
}
