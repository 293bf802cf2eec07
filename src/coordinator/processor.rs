//! Processors that code can be compiled for, by the features that it may use. Used by `cwasi compile`.
//!
//! A level is a set of features that many machines have, as compilers of C, Go and Rust name it: code for a level runs on
//! every processor that has these and more.

use std::env::consts::ARCH;

use cwasi_config::Engine;

use super::fingerprint::cpu_features;

/// The processor of this machine.
pub const NATIVE: &str = "native";

/// Features of x86-64 that wasmtime's compiler knows, as `/proc/cpuinfo` names them.
const X86_64: [&str; 19] = [
    "abm",
    "avx",
    "avx2",
    "avx512_bitalg",
    "avx512_vnni",
    "avx512dq",
    "avx512f",
    "avx512vbmi",
    "avx512vl",
    "avx_vnni",
    "bmi1",
    "bmi2",
    "cx16",
    "fma",
    "pni",
    "popcnt",
    "sse4_1",
    "sse4_2",
    "ssse3",
];
/// The same of 64-bit ARM. Half precision needs both `asimdhp` and `fphp`.
const AARCH64: [&str; 6] = ["asimddp", "asimdhp", "atomics", "fphp", "i8mm", "paca"];

const V2: &[&str] = &["cx16", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"];
const V3: &[&str] = &[
    "abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "fma", "pni", "popcnt", "sse4_1", "sse4_2",
    "ssse3",
];
const V4: &[&str] = &[
    "abm", "avx", "avx2", "avx512dq", "avx512f", "avx512vl", "bmi1", "bmi2", "cx16", "fma", "pni",
    "popcnt", "sse4_1", "sse4_2", "ssse3",
];

/// Each level's name, its architecture as Rust names it, and those of its features that the compiler uses.
const LEVELS: [(&str, &str, &[&str]); 5] = [
    ("x86-64-v2", "x86_64", V2),
    ("x86-64-v3", "x86_64", V3),
    ("x86-64-v4", "x86_64", V4),
    ("armv8-a", "aarch64", &[]),
    ("armv8.1-a", "aarch64", &["atomics"]),
];

/// A processor that code is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// [`NATIVE`], or that of a level.
    pub name: &'static str,
    /// Features that the code may use, sorted.
    pub features: Vec<String>,
}

/// A processor that code cannot be compiled for here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessorError {
    #[error("`{name}` is no processor: use {}", names())]
    Unknown { name: String },
    #[error(
        "this machine compiles for {ARCH} only, and {name} is a processor of {architecture}: compile there"
    )]
    Architecture { name: &'static str, architecture: &'static str },
    #[error(
        "the engine {engine} compiles for this machine's processor only (--processor {NATIVE})"
    )]
    Engine { engine: Engine },
}

/// The names of all levels.
pub fn levels() -> impl Iterator<Item = &'static str> {
    LEVELS.into_iter().map(|(name, ..)| name)
}

/// All names, for people.
#[must_use]
pub fn names() -> String {
    let levels: Vec<_> = levels().collect();
    format!("{NATIVE}, {}", levels.join(", "))
}

impl Processor {
    /// The processor of this name, for the compiler of `engine`.
    ///
    /// # Errors
    /// When there is none, or the compiler here has none of its kind.
    pub fn named(name: &str, engine: Engine) -> Result<Self, ProcessorError> {
        if name == NATIVE {
            return Ok(Self::native(engine));
        }
        let unknown = || ProcessorError::Unknown { name: name.to_owned() };
        let (name, architecture, features) =
            LEVELS.into_iter().find(|(level, ..)| *level == name).ok_or_else(unknown)?;
        if architecture != ARCH {
            return Err(ProcessorError::Architecture { name, architecture });
        }
        if engine == Engine::Wasmedge {
            return Err(ProcessorError::Engine { engine });
        }
        Ok(Self { name, features: features.iter().map(ToString::to_string).collect() })
    }

    /// This machine's. LLVM may use any of its features, wasmtime's compiler uses those that it knows.
    fn native(engine: Engine) -> Self {
        let known: &[&str] = if ARCH == "x86_64" { &X86_64 } else { &AARCH64 };
        let is_used = |name: &&str| engine == Engine::Wasmedge || known.contains(name);
        let all = cpu_features().split(' ').filter(|name| !name.is_empty());
        Self { name: NATIVE, features: all.filter(is_used).map(str::to_owned).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_sorted_and_each_has_what_the_one_before_has() {
        for (name, architecture, features) in LEVELS {
            assert!(features.is_sorted(), "{name}");
            let known: &[&str] = if architecture == "x86_64" { &X86_64 } else { &AARCH64 };
            assert!(features.iter().all(|feature| known.contains(feature)), "{name}");
        }
        for (less, more) in [(V2, V3), (V3, V4)] {
            assert!(less.iter().all(|feature| more.contains(feature)));
        }
    }

    #[test]
    fn this_machine_compiles_for_its_own_kind() {
        let own = |engine| Processor::named(NATIVE, engine).unwrap().features;
        assert!(own(Engine::Wasmedge).len() >= own(Engine::Wasmtime).len());
        assert_eq!(own(Engine::Wasmedge).join(" "), cpu_features());
        for (name, architecture, _) in LEVELS {
            let found = Processor::named(name, Engine::Wasmtime);
            assert_eq!(found.is_ok(), architecture == ARCH, "{name}");
            Processor::named(name, Engine::Wasmedge).unwrap_err();
        }
        let error = Processor::named("pentium", Engine::Wasmtime).unwrap_err().to_string();
        assert!(error.contains("`pentium` is no processor: use native, x86-64-v2,"), "{error}");
    }
}
