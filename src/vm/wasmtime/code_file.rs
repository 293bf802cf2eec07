//! Files with native code that our own compiler made. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::Path;

use cwasi_vm::engine::VmError;
use cwasi_wasmtime_artifact::{Kind, Trailer};
use wasmtime::{Engine, Module};

/// A file that our own compiler made.
pub(super) struct CodeFile<'a> {
    pub(super) path: &'a Path,
    pub(super) file: File,
    pub(super) trailer: Trailer,
}

pub(super) struct LoadedCode {
    pub(super) module: Module,
    pub(super) trailer: Trailer,
    pub(super) descriptor: RawFd,
}

impl<'a> CodeFile<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self, VmError> {
        let bad = |reason: String| VmError::Artifact { path: path.to_owned(), reason };
        if !path.is_absolute() {
            return Err(bad("the path is not absolute".into()));
        }
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        match Trailer::read(&file) {
            Ok(Some(trailer)) => Ok(Self { path, file, trailer }),
            Ok(None) => Err(bad("the compiler of this runtime has not made it".into())),
            Err(error) => Err(bad(error.to_string())),
        }
    }

    /// Loads a core module.
    pub(super) fn load(&self, engine: &Engine) -> Result<LoadedCode, VmError> {
        let bad = |reason: String| VmError::Artifact { path: self.path.to_owned(), reason };
        if self.trailer.kind == Kind::Component {
            return Err(bad("a component cannot be embedded".into()));
        }
        let file = self.file.try_clone().map_err(|error| bad(error.to_string()))?;
        let descriptor = file.as_raw_fd();
        // SAFETY:
        // - our own compiler made the file, which nobody changes: the trait's condition.
        let module = unsafe { Module::deserialize_open_file(engine, file) }
            .map_err(|error| bad(format!("{error:#}")))?;
        Ok(LoadedCode { module, trailer: self.trailer, descriptor })
    }
}
