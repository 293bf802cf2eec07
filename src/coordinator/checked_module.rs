//! A checked module or component, and why one is refused. Runs in the shim daemon.

use std::collections::BTreeMap;

use cwasi_abi::export;
use cwasi_abi::interfaces::{HANDLERS, RUN};
use cwasi_config::Engine;
use sha2::{Digest as _, Sha256};

use super::home::append_home;

/// Largest module in bytes.
pub const MODULE_MAX: u64 = 128 << 20;
/// Most names in one message.
pub(super) const IMPORTS_SHOWN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error(
        "{origin} is not a WebAssembly module: it does not start with the magic bytes `\\0asm`{hint}"
    )]
    NoModule { origin: String, hint: &'static str },
    /// A component for an engine that runs none.
    #[error(
        "{origin} is a WebAssembly component, which wasmtime runs: set the annotation cwasi.engine=wasmtime, or build \
         it for wasm32-wasip1 instead of wasm32-wasip2"
    )]
    Component { origin: String },
    #[error(
        "{origin} imports interfaces that this host does not provide: {interfaces}; a component may import WASI 0.2 \
         and 0.3, and the interfaces of `cwasi:calls` (docs/components.md)"
    )]
    Interfaces {
        origin: String,
        /// Their names, comma-separated.
        interfaces: String,
    },
    /// An invalid module, or one with features that the engine does not have.
    #[error("{origin} is not a valid WebAssembly module: {source}")]
    Invalid {
        origin: String,
        /// The fault and its offset.
        #[source]
        source: wasmparser::BinaryReaderError,
    },
    #[error("{origin} imports what this host does not provide: {imports}")]
    Imports {
        origin: String,
        /// Their text, comma-separated.
        imports: String,
    },
    #[error("{origin} exports `{name}`, a name that is reserved for the runtime")]
    Reserved { origin: String, name: String },
    #[error(
        "{origin} of {length} bytes is larger than the limit of {MODULE_MAX} bytes for a module"
    )]
    TooLarge {
        origin: String,
        /// Its length in bytes.
        length: u64,
    },
}

/// A module that may be compiled and run.
#[derive(Clone, Debug)]
pub struct CheckedModule {
    /// The binary without native code.
    pub bytes: Vec<u8>,
    /// sha256 of `bytes`, hexadecimal.
    pub digest: String,
    /// A component instead of a core module.
    pub is_component: bool,
    /// Names of exported functions; of interfaces for a component.
    pub exports: Vec<String>,
    /// Imports from modules that are not the host's, as text, by module and name.
    pub foreign: BTreeMap<String, BTreeMap<String, String>>,
    /// Imported socket functions that need `cwasi.network`, the first few.
    pub sockets: Vec<String>,
    /// True if it had native code, which was dropped.
    pub dropped_native: bool,
    /// True if it can open files.
    pub opens_files: bool,
    /// True if it imports the host function of the paper's prototype.
    pub imports_prototype: bool,
}

impl CheckedModule {
    /// True if the module exports a function of that name.
    #[must_use]
    pub fn has_export(&self, name: &str) -> bool {
        self.exports.iter().any(|export| export == name)
    }

    /// True if requests go to `cwasi_handle`, or to a component's handler.
    #[must_use]
    pub fn is_reactor(&self) -> bool {
        if self.is_component {
            return handles(&self.exports);
        }
        self.has_export(export::HANDLE)
    }

    /// True if it exports `_start`, or is a component with `wasi:cli/run`.
    #[must_use]
    pub fn is_command(&self) -> bool {
        if self.is_component {
            return runs(&self.exports);
        }
        self.has_export(export::START)
    }
}

impl CheckedModule {
    /// Returns the module as `engine` compiles it. For WasmEdge, a module that `embeds` others gets `cwasi.home`.
    ///
    /// # Errors
    /// None for a checked module.
    pub fn prepared_for(
        self,
        engine: Engine,
        embeds: bool,
        origin: &str,
    ) -> Result<Self, ModuleError> {
        match engine {
            Engine::Wasmedge if embeds => self.with_home(origin),
            Engine::Wasmedge | Engine::Wasmtime => Ok(self),
        }
    }

    /// Returns the module with the export `cwasi.home` ([`super::home`]).
    ///
    /// # Errors
    /// None for a checked module.
    pub fn with_home(self, origin: &str) -> Result<Self, ModuleError> {
        let bytes = append_home(&self.bytes)
            .map_err(|source| ModuleError::Invalid { origin: origin.to_owned(), source })?;
        Ok(Self { digest: hex::encode(Sha256::digest(&bytes)), bytes, ..self })
    }
}

/// True if requests can come to a component with these exports.
pub(super) fn handles(exports: &[String]) -> bool {
    exports.iter().any(|export| HANDLERS.iter().any(|handler| handler.is(export)))
}

/// True if a component with these exports is a command.
pub(super) fn runs(exports: &[String]) -> bool {
    exports.iter().any(|export| RUN.is(export))
}

/// The first names, and the number of the others.
pub(super) fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(IMPORTS_SHOWN)].join(", ");
    match names.len().saturating_sub(IMPORTS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
