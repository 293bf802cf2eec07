//! The zygotes of a group, one for each engine that its functions need. Runs in the shim daemon.
//!
//! The zygote of the node's engine starts with the daemon. It also serves the operations that need no engine, and native
//! containers. Another engine's zygote starts with its first function.

use std::sync::OnceLock;

use super::reaper::Reaper;
use super::spawn::{Program, SpawnError};
use super::zygote::{Zygote, ZygoteError};
use cwasi_config::Engine;

#[derive(Debug)]
pub struct Zygotes {
    default: EngineZygote,
    others: Vec<EngineZygote>,
    find: FindProgram,
    reaper: Reaper,
}

/// Opens an installed program by its name.
type FindProgram = fn(&'static str) -> Result<Program, SpawnError>;

#[derive(Debug)]
struct EngineZygote {
    engine: Engine,
    /// Empty while the engine is not installed.
    zygote: OnceLock<Zygote>,
}

impl Zygotes {
    /// Opens the engines' programs, next to this one or in `PATH`. `default` is the node's engine. Starts no zygote.
    ///
    /// # Errors
    /// When the program of `default` is missing. Another engine may be installed later.
    pub fn open(default: Engine, reaper: &Reaper) -> Result<Self, ZygoteError> {
        Self::find(default, reaper, Program::beside)
    }

    fn find(default: Engine, reaper: &Reaper, find: FindProgram) -> Result<Self, ZygoteError> {
        let slot = |engine| EngineZygote { engine, zygote: OnceLock::new() };
        let others = Engine::ALL.into_iter().filter(|engine| *engine != default).map(slot);
        let (others, reaper) = (others.collect(), reaper.clone());
        let zygotes = Self { default: slot(default), others, find, reaper };
        for other in &zygotes.others {
            // A function that needs the engine gets the error.
            let _missing = zygotes.open_slot(other);
        }
        zygotes.open_slot(&zygotes.default)?;
        Ok(zygotes)
    }

    /// Starts the zygote of the node's engine.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub async fn start_default(&self) -> Result<(), ZygoteError> {
        self.default()?.start().await
    }

    /// The zygote of the node's engine.
    ///
    /// # Errors
    /// None after [`Self::open`].
    pub fn default(&self) -> Result<&Zygote, ZygoteError> {
        self.open_slot(&self.default)
    }

    /// The zygote for functions of `engine`.
    ///
    /// # Errors
    /// When the engine is not installed.
    pub fn of(&self, engine: Engine) -> Result<&Zygote, ZygoteError> {
        let slot = self.others.iter().find(|slot| slot.engine == engine);
        self.open_slot(slot.unwrap_or(&self.default))
    }

    /// Ends all zygotes and waits for them.
    pub async fn stop(&self) {
        for slot in self.others.iter().chain([&self.default]) {
            if let Some(zygote) = slot.zygote.get() {
                zygote.stop().await;
            }
        }
    }

    fn open_slot<'a>(&self, slot: &'a EngineZygote) -> Result<&'a Zygote, ZygoteError> {
        if let Some(zygote) = slot.zygote.get() {
            return Ok(zygote);
        }
        let engine = slot.engine;
        let program = (self.find)(engine.sandbox_program()).map_err(|error| match error {
            SpawnError::NotInstalled { program, this } => {
                ZygoteError::NoEngine { engine, program, this }
            }
            error => error.into(),
        })?;
        // Another thread may have been faster; its zygote counts.
        Ok(slot.zygote.get_or_init(|| Zygote::of(engine, program, &self.reaper)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// WasmEdge is not installed.
    fn wasmtime_alone(program: &'static str) -> Result<Program, SpawnError> {
        if program == Engine::Wasmtime.sandbox_program() {
            Program::open(PathBuf::from("/proc/self/exe"))
        } else {
            Err(SpawnError::NotInstalled { program, this: "/usr/bin/cwasi-shim".into() })
        }
    }

    #[test]
    fn only_the_nodes_engine_has_to_be_installed() {
        let reaper = Reaper::default();
        let zygotes = Zygotes::find(Engine::Wasmtime, &reaper, wasmtime_alone).unwrap();
        assert!(zygotes.default().is_ok() && zygotes.of(Engine::Wasmtime).is_ok());
        let missing = zygotes.of(Engine::Wasmedge).map(drop).unwrap_err();
        assert!(matches!(missing, ZygoteError::NoEngine { engine: Engine::Wasmedge, .. }));
        let missing = Zygotes::find(Engine::Wasmedge, &reaper, wasmtime_alone).unwrap_err();
        assert!(matches!(missing, ZygoteError::NoEngine { engine: Engine::Wasmedge, .. }));
    }

    #[test]
    fn an_engine_can_be_installed_later() {
        let reaper = Reaper::default();
        let mut zygotes = Zygotes::find(Engine::Wasmtime, &reaper, wasmtime_alone).unwrap();
        zygotes.find = |_| Program::open(PathBuf::from("/proc/self/exe"));
        assert!(zygotes.of(Engine::Wasmedge).is_ok());
    }

    #[test]
    fn a_missing_engine_is_named_with_its_program() {
        let this = PathBuf::from("/usr/bin/cwasi-shim");
        let program = Engine::Wasmedge.sandbox_program();
        let error = ZygoteError::NoEngine { engine: Engine::Wasmedge, program, this };
        assert_eq!(
            error.to_string(),
            "the engine wasmedge is not installed on this node: `cwasi-sandbox-wasmedge` is neither beside \
             /usr/bin/cwasi-shim nor in PATH"
        );
    }
}
