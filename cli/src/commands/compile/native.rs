//! One module's native code, by the compiler of its engine, which is a process without the cgroup that a shim gives it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::Context as _;
use cwasi_config::{CompileConfig, Engine, NodeConfig};
use cwasi_coordinator::aot::Artifact;
use cwasi_coordinator::module::CheckedModule;
use cwasi_coordinator::processor::Processor;
use cwasi_coordinator::{AotCache, CompileChild, CompileJob, Progress, component, module};
use tokio::process::Command;

use crate::deployment::display::Display;
use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupt;

/// The compilers of the node's engines.
pub(super) struct Compilers {
    pub(super) config: NodeConfig,
    engine: Option<Engine>,
    /// Who waits for a compiler.
    tenant: String,
    display: Display,
    pub(super) interrupt: Interrupt,
}

/// A module that may be compiled.
pub(super) struct Module {
    pub(super) checked: CheckedModule,
    pub(super) engine: Engine,
    pub(super) origin: String,
}

/// Runs the compiler.
struct Child {
    program: PathBuf,
    config: CompileConfig,
    /// Of the processor that the code is for; `None` = this machine's.
    features: Option<String>,
}

impl CompileChild for Child {
    async fn compile(&self, job: &CompileJob<'_>) -> Result<(), String> {
        let limits = self.config.limits_for(job.length, u64::MAX);
        let features = self.features.as_ref().map(|names| format!("--features={names}"));
        let output = Command::new(&self.program)
            .args(job.engine.compiler_arguments())
            .arg(format!("--memory={}", limits.memory))
            .arg(format!("--cpu-seconds={}", limits.cpu_seconds))
            .args(features)
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

impl Compilers {
    /// For `engine`, or else the node's.
    pub(super) fn new(
        config: NodeConfig,
        engine: Option<Engine>,
        tenant: &str,
    ) -> Result<Self, Failure> {
        let (display, interrupt) = (Display::default(), Interrupt::new()?);
        Ok(Self { config, engine, tenant: tenant.to_owned(), display, interrupt })
    }

    /// Checks a module, as a start would.
    pub(super) fn check(&self, bytes: &[u8], origin: &str) -> Result<Module, Failure> {
        let checked =
            module::check(bytes, origin).map_err(|error| Failure::new(Exit::Data, error))?;
        let engine = component::engine_of(&checked, self.engine, self.config.engine, origin)
            .map_err(|error| Failure::new(Exit::Data, error))?;
        // As the coordinator prepares a module that imports from others.
        let embeds = !checked.foreign.is_empty();
        let checked = checked.prepared_for(engine, embeds, origin)?;
        Ok(Module { checked, engine, origin: origin.to_owned() })
    }

    /// The module's code, of `cache` or compiled for a processor; `None` = this machine's, with all of its features.
    pub(super) async fn compile(
        &mut self,
        cache: &AotCache,
        module: &Module,
        processor: Option<&Processor>,
    ) -> Result<Artifact, Failure> {
        let Module { checked, engine, origin } = module;
        let features = match engine {
            Engine::Wasmtime => processor.map(|processor| processor.features.join(",")),
            Engine::Wasmedge => None,
        };
        let (program, config) = (compiler(*engine)?, self.config.compile.clone());
        let child = Child { program, config, features };
        let (said, tenant) = (Said(&self.display), &self.tenant);
        let (line, began) = (self.display.line(origin), Instant::now());
        let length = Some(checked.bytes.len());
        let artifact = self
            .interrupt
            .or(async {
                tokio::select! {
                    artifact = cache.artifact(checked, *engine, origin, tenant, &child, &said) => Ok(artifact?),
                    never = line.compiling(began, length) => match never {},
                }
            })
            .await;
        line.clear();
        artifact
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
