//! `[compile]` of the node's configuration: limits of compiling. Runs in the shim daemon.
//!
//! The compiler reads untrusted input, and takes a multiple of a module's size in memory and time. A few bytes of
//! WebAssembly can stand for gigabytes in the compiler, so the size and number of a module's parts are limited, too.

use std::path::{Component, Path};

use serde::{Deserialize, Deserializer, Serialize};

use super::values;

/// Largest configurable size in bytes.
const SIZE_MAX: u64 = 1 << 40;
/// Most `trusted_keys`: each of them is tried for each module that is not in the cache.
const KEYS_MAX: usize = 16;
/// Bytes per MiB.
const MIB: u64 = 1 << 20;

/// Limits of compiling. A size is a text such as `"512MiB"` or a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompileConfig {
    /// Whether this node compiles at all; without, it runs code of its cache and precompiled code that it trusts.
    pub enabled: bool,
    /// Public keys whose signatures under precompiled code this node trusts, each a file or the key itself in PEM; none =
    /// no such code runs.
    pub trusted_keys: Vec<String>,
    /// Most compilers at once, over all shims that share the cache; 0 = half of the processors, at least one.
    pub jobs: usize,
    /// Memory of one compiler: this, plus `memory_per_mib` for each MiB of the module.
    #[serde(deserialize_with = "size")]
    pub memory: u64,
    /// See `memory`.
    #[serde(deserialize_with = "size")]
    pub memory_per_mib: u64,
    /// Memory of all compilers together, which also bounds each; 0 = half of the machine's.
    #[serde(deserialize_with = "size_or_zero")]
    pub memory_total: u64,
    /// Processor time of one compiler in seconds: this, plus `cpu_seconds_per_mib` for each MiB of the module.
    pub cpu_seconds: u64,
    /// See `cpu_seconds`.
    pub cpu_seconds_per_mib: u64,
    /// Cgroup of the compilers, below the root of each hierarchy; empty = none.
    pub cgroup: String,
    /// Most functions of a module.
    pub functions: u64,
    /// Most types of a module.
    pub types: u64,
    /// Most local variables of all functions of a module together.
    pub locals: u64,
    /// Largest body of one function in bytes.
    #[serde(deserialize_with = "size")]
    pub function_size: u64,
    /// Most bytes of compiled modules in the cache; 0 = no bound.
    #[serde(deserialize_with = "size_or_zero")]
    pub cache_max: u64,
}

impl Default for CompileConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            trusted_keys: Vec::new(),
            jobs: 0,
            memory: 512 * MIB,
            memory_per_mib: 256 * MIB,
            memory_total: 0,
            cpu_seconds: 120,
            cpu_seconds_per_mib: 60,
            cgroup: "cwasi-compile".to_owned(),
            functions: 100_000,
            types: 10_000,
            locals: 1_000_000,
            function_size: 4 * MIB,
            cache_max: 8192 * MIB,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompilerLimits {
    /// Memory in bytes.
    pub memory: u64,
    /// Processor time in seconds.
    pub cpu_seconds: u64,
}

impl CompileConfig {
    /// Most compilers at once on a machine with this many processors.
    #[must_use]
    pub fn jobs_for(&self, processors: usize) -> usize {
        if self.jobs == 0 { (processors / 2).max(1) } else { self.jobs }
    }

    /// Memory of all compilers together on a machine with `memory` bytes.
    #[must_use]
    pub fn memory_total_for(&self, memory: u64) -> u64 {
        if self.memory_total == 0 { memory / 2 } else { self.memory_total }
    }

    /// Limits of the compiler of a module of `length` bytes. `memory_total` bounds all compilers together.
    #[must_use]
    pub fn limits_for(&self, length: u64, memory_total: u64) -> CompilerLimits {
        let scaled = |base: u64, per_mib: u64| {
            let more = u128::from(length) * u128::from(per_mib) / u128::from(MIB);
            base.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
        };
        CompilerLimits {
            memory: scaled(self.memory, self.memory_per_mib).min(memory_total),
            cpu_seconds: scaled(self.cpu_seconds, self.cpu_seconds_per_mib),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The fault, for the user.
    pub(super) fn validate(&self) -> Result<(), String> {
        let inside =
            Path::new(&self.cgroup).components().all(|c| matches!(c, Component::Normal(_)));
        if !inside {
            let cgroup = &self.cgroup;
            return Err(format!(
                "compile.cgroup = {cgroup:?} must be a path below the roots of the cgroup hierarchies, such as \"cwasi-compile\", or empty"
            ));
        }
        let is_key = |entry: &str| is_pem(entry) || Path::new(entry).is_absolute();
        if let Some(entry) = self.trusted_keys.iter().find(|entry| !is_key(entry)) {
            return Err(format!(
                "compile.trusted_keys has {entry:?}, which must be an absolute path, or a public key in PEM"
            ));
        }
        if self.trusted_keys.len() > KEYS_MAX {
            return Err(format!("compile.trusted_keys has more than {KEYS_MAX} keys"));
        }
        let limits = [
            ("cpu_seconds", self.cpu_seconds),
            ("functions", self.functions),
            ("types", self.types),
            ("locals", self.locals),
        ];
        match limits.iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(format!("compile.{key} must be larger than zero")),
            None => Ok(()),
        }
    }
}

/// Whether an entry of `trusted_keys` is the key itself, and not its file.
#[must_use]
pub fn is_pem(entry: &str) -> bool {
    entry.trim_start().starts_with("-----BEGIN ")
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ByteSize {
    Bytes(u64),
    Text(String),
}

fn size_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = match ByteSize::deserialize(deserializer)? {
        ByteSize::Bytes(0) => return Ok(0),
        ByteSize::Bytes(bytes) => bytes.to_string(),
        ByteSize::Text(text) => text,
    };
    values::size(&text, SIZE_MAX)
        .map_err(|problem| serde::de::Error::custom(format!("`{text}` {problem}")))
}

/// A size that is not zero.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match size_or_zero(deserializer)? {
        0 => Err(serde::de::Error::custom("must be larger than zero")),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_the_module_up_to_what_all_have() {
        let config = CompileConfig::default();
        let small = config.limits_for(1_700, 64 << 30);
        assert_eq!((small.memory >> 20, small.cpu_seconds), (512, 120));
        let large = config.limits_for(9 << 20, 64 << 30);
        assert_eq!((large.memory >> 20, large.cpu_seconds), (512 + 9 * 256, 120 + 9 * 60));
        assert_eq!(config.limits_for(9 << 20, 1 << 30).memory, 1 << 30);
        let config = CompileConfig { memory_per_mib: u64::MAX, ..config };
        assert_eq!(config.limits_for(1 << 40, u64::MAX).memory, u64::MAX);
    }

    #[test]
    fn defaults_depend_on_the_machine() {
        let config = CompileConfig::default();
        assert_eq!([1, 2, 3, 8].map(|processors| config.jobs_for(processors)), [1, 1, 1, 4]);
        assert_eq!(config.memory_total_for(8 << 30), 4 << 30);
        let config = CompileConfig { jobs: 3, memory_total: 1, ..config };
        assert_eq!((config.jobs_for(8), config.memory_total_for(8 << 30)), (3, 1));
    }
}
