//! The engines that run functions, and the programs of each. Runs in processes of the host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Engine of nodes whose configuration names none.
pub const DEFAULT_ENGINE: Engine = Engine::Wasmtime;

/// The engine of a function (`cwasi.engine`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Wasmtime,
    Wasmedge,
}

/// A name of no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be {} or {}", Engine::Wasmtime, Engine::Wasmedge)]
pub struct UnknownEngine;

impl Engine {
    pub const ALL: [Self; 2] = [Self::Wasmtime, Self::Wasmedge];

    /// Its spelling in `cwasi.engine`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wasmtime => "wasmtime",
            Self::Wasmedge => "wasmedge",
        }
    }

    /// The program of its zygote, and so of its sandboxes.
    #[must_use]
    pub const fn sandbox_program(self) -> &'static str {
        match self {
            Self::Wasmtime => "cwasi-sandbox",
            Self::Wasmedge => "cwasi-sandbox-wasmedge",
        }
    }

    /// The program that compiles for it.
    #[must_use]
    pub const fn compiler_program(self) -> &'static str {
        match self {
            Self::Wasmtime => "cwasi-compiler",
            Self::Wasmedge => "cwasi-sandbox-wasmedge",
        }
    }

    /// First arguments of [`Self::compiler_program`].
    #[must_use]
    pub const fn compiler_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Wasmtime => &[],
            Self::Wasmedge => &["compile"],
        }
    }

    /// Extension of its native code's files: the dynamic linker loads WasmEdge's.
    #[must_use]
    pub const fn native_extension(self) -> &'static str {
        match self {
            Self::Wasmtime => "cwasm",
            Self::Wasmedge => "so",
        }
    }

    /// Its programs, each once.
    #[must_use]
    pub fn programs(self) -> Vec<&'static str> {
        let mut programs = vec![self.sandbox_program(), self.compiler_program()];
        programs.dedup();
        programs
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = UnknownEngine;

    fn from_str(text: &str) -> Result<Self, UnknownEngine> {
        Self::ALL.into_iter().find(|engine| engine.name() == text).ok_or(UnknownEngine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for engine in Engine::ALL {
            assert_eq!(engine.to_string().parse(), Ok(engine));
            assert_eq!(serde_json::to_value(engine).unwrap(), engine.name());
        }
        let error = "Wasmtime".parse::<Engine>().unwrap_err();
        assert_eq!(error.to_string(), "must be wasmtime or wasmedge");
    }

    #[test]
    fn engines_share_no_program_and_no_file() {
        let [one, other] = Engine::ALL;
        assert!(one.programs().iter().all(|program| !other.programs().contains(program)));
        assert_ne!(one.native_extension(), other.native_extension());
    }
}
