//! `cwasi compile MODULE…`: fills the node's cache of native code, so that the first start need not.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use cwasi_config::{CompileConfig, Engine, NodeConfig, regular_file};
use cwasi_coordinator::fingerprint::fingerprint;
use cwasi_coordinator::{AotCache, CompileChild, CompileJob, Progress, component, module};
use serde_json::json;
use tokio::process::Command;

use crate::arguments::Global;
use crate::deployment::display::Display;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::output;

/// Arguments of the verb.
#[derive(Debug, Args)]
pub struct Compile {
    /// Engine that will run the modules; the node's if none is given
    #[arg(long, value_name = "ENGINE", value_parser = engines())]
    engine: Option<Engine>,
    /// Modules
    #[arg(required = true, value_name = "MODULE")]
    modules: Vec<PathBuf>,
}

/// Names of engines on the command line.
fn engines() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).try_map(|name| name.parse::<Engine>())
}

/// Runs the compiler, without the cgroup that a shim gives it.
struct Child {
    program: PathBuf,
    config: CompileConfig,
}

impl CompileChild for Child {
    async fn compile(&self, job: &CompileJob<'_>) -> Result<(), String> {
        let limits = self.config.limits_for(job.length, u64::MAX);
        let output = Command::new(&self.program)
            .args(job.engine.compiler_arguments())
            .arg(format!("--memory={}", limits.memory))
            .arg(format!("--cpu-seconds={}", limits.cpu_seconds))
            .args([job.wasm, job.out])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        let output =
            output.map_err(|error| format!("{} cannot run: {error}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("the compiler ended with {}: {message}", output.status))
    }
}

/// Passes on what the cache says.
struct Said<'a>(&'a Display);

impl Progress for Said<'_> {
    fn info(&self, text: &str) {
        self.0.note(&format!("cwasi: {text}"));
    }

    fn warn(&self, text: &str) {
        self.0.note(&format!("cwasi: warning: {text}"));
    }
}

impl Compile {
    /// Compiles what is not in the cache, one module after the other.
    pub async fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let config = NodeConfig::load(None, None)?;
        let cache = AotCache::new(&config.cache_dir, fingerprint, &config.compile);
        let display = Display::default();
        let mut interrupt = Interrupt::new()?;
        let mut printed = Ok(());
        for path in &self.modules {
            let origin = path.display().to_string();
            let bytes = regular_file::read(path)
                .with_context(|| format!("module {origin} cannot be read"))
                .map_err(|error| Failure::new(Exit::Missing, error))?;
            let checked =
                module::check(&bytes, &origin).map_err(|error| Failure::new(Exit::Data, error))?;
            let engine = component::engine_of(&checked, self.engine, config.engine, &origin)
                .map_err(|error| Failure::new(Exit::Data, error))?;
            let child = Child { program: compiler(engine)?, config: config.compile.clone() };
            // As the coordinator prepares a module that imports from others.
            let embeds = !checked.foreign.is_empty();
            let checked = checked.prepared_for(engine, embeds, &origin)?;
            let line = display.line(&origin);
            let (began, said, tenant) = (Instant::now(), Said(&display), &global.namespace);
            let artifact = interrupt
                .or(async {
                    tokio::select! {
                        artifact = cache.artifact(&checked, engine, &origin, tenant, &child, &said) => Ok(artifact?),
                        never = line.compiling(began, Some(bytes.len())) => match never {},
                    }
                })
                .await;
            line.clear();
            let artifact = artifact?;
            let state = if artifact.compiled.is_some() { "compiled" } else { "cached" };
            let text = if global.json {
                let seconds = artifact.compiled.map(|took| took.as_secs_f64());
                let file = artifact.path;
                json!({
                    "module": origin, "engine": engine, "state": state, "seconds": seconds, "file": file,
                })
                .to_string()
            } else {
                format!("{origin} {state}")
            };
            printed = printed.and(output::line(text));
        }
        printed.map(|()| ExitCode::SUCCESS)
    }
}

/// The compiler of an engine, which is installed beside this program.
fn compiler(engine: Engine) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().context("this program's own path is not known")?;
    let beside = own.with_file_name(engine.compiler_program());
    if beside.exists() {
        return Ok(beside);
    }
    let text = format!(
        "the engine {engine} has no compiler here, {} is missing: install the runtime's programs (make install)",
        beside.display()
    );
    Err(Failure::text(Exit::Missing, text))
}
