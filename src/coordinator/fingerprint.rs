//! Inputs of native code besides the module: a part of the AOT cache's key. Used by the shim daemon.
//!
//! Invariant: nothing here refers to the engine's library, which the daemon does not link.

use std::env::consts::ARCH;
use std::fmt;
use std::fs;
use std::sync::OnceLock;

use cwasi_config::Engine;

/// How `cwasi-compiler` calls Cranelift. Change it with every other setting that native code depends on, and with every
/// other change to the bytes that are compiled.
const WASMTIME_OPTIONS: &str = "wasmtime cranelift host-cpu component-model 4";
/// How `cwasi-sandbox-wasmedge compile` calls LLVM. Change it with every other way of calling it, and with every other
/// change to the bytes that are compiled.
const WASMEDGE_OPTIONS: &str = "wasmedge native O2 default-proposals host-cpu 3";

/// Lines of `/proc/cpuinfo` that name what the CPU can do: x86-64 and AArch64.
const FEATURE_KEYS: [&str; 2] = ["flags", "Features"];

/// What native code depends on besides its module; a change of any of it is another key in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Version of the engine.
    pub version: String,
    /// How the compiler is called.
    pub options: String,
    /// The processor's architecture, as Rust names it.
    pub architecture: String,
    /// Names of its features, sorted, with spaces between them.
    pub features: String,
}

impl fmt::Display for Fingerprint {
    /// The part of the cache's key. An architecture has features of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, options, features, .. } = self;
        write!(f, "{version}\n{options}\n{features}")
    }
}

/// Version of the engine that native code is made by and for.
#[must_use]
pub const fn engine_version(engine: Engine) -> &'static str {
    match engine {
        Engine::Wasmtime => "48.0.8",
        Engine::Wasmedge => "0.14.1",
    }
}

/// That of this machine.
#[must_use]
pub fn fingerprint(engine: Engine) -> Fingerprint {
    let options = match engine {
        Engine::Wasmtime => WASMTIME_OPTIONS,
        Engine::Wasmedge => WASMEDGE_OPTIONS,
    };
    Fingerprint {
        version: engine_version(engine).to_owned(),
        options: options.to_owned(),
        architecture: ARCH.to_owned(),
        features: cpu_features().to_owned(),
    }
}

/// Names of the CPU's features, sorted: the compilers use all that they find.
///
/// Empty when the kernel does not report it; then native code of one machine must not be used on another.
#[must_use]
pub fn cpu_features() -> &'static str {
    static FEATURES: OnceLock<String> = OnceLock::new();
    FEATURES.get_or_init(|| features(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
}

pub fn features(cpuinfo: &str) -> String {
    let mut names: Vec<&str> = cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| FEATURE_KEYS.contains(&key.trim()))
        .map(|(_, value)| value.split_ascii_whitespace().collect())
        .unwrap_or_default();
    names.sort_unstable();
    names.dedup();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_different_fingerprints() {
        let [one, other] = Engine::ALL.map(|engine| fingerprint(engine).to_string());
        assert_ne!(one, other);
        for text in [one, other] {
            assert!(text.ends_with(cpu_features()), "{text}");
        }
    }

    #[test]
    fn features_are_sorted_names_of_the_first_cpu() {
        let cpuinfo = "processor : 0\nflags\t\t: sse2 avx fpu\n\nprocessor : 1\nflags : x\n";
        assert_eq!(features(cpuinfo), "avx fpu sse2");
        assert_eq!(features("Features : fp asimd"), "asimd fp");
        assert_eq!(features("nothing"), "");
        assert!(!cpu_features().is_empty());
    }
}
