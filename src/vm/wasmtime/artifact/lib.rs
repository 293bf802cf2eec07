//! What wasmtime's compiler and runtime have to agree on. Used by `cwasi-compiler`, builder and workers.
//!
//! A file with native code is wasmtime's own (an ELF file, which it maps), followed by a trailer of ours
//! ([`Trailer`]).
//!
//! Invariant: no part of the compiler. Cargo joins the features of a build's packages, so the compiler is a workspace
//! of its own (`compiler/`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use wasmtime::Config;

/// Settings that native code depends on. The runtime refuses code of other settings.
///
/// wasmtime's defaults but for: one 32-bit memory for a module, as the guest ABI has it. Between the components of which
/// a component is composed, wasmtime copies with modules of its own, which have both memories. Every call pays for
/// functions that may be asynchronous, so only components that have some may have them.
#[must_use]
pub fn settings(kind: Kind) -> Config {
    let mut config = Config::new();
    config.wasm_memory64(false).wasm_multi_memory(kind != Kind::Module);
    config.concurrency_support(kind == Kind::AsyncComponent);
    config
}

/// First bytes of a trailer; the last one is its version.
const MAGIC: [u8; 8] = *b"cwasi\0\0\x02";

/// What was compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A core module.
    #[default]
    Module,
    /// A component.
    Component,
    /// A component with asynchronous functions: its own, or those of WASI 0.3.
    AsyncComponent,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Module, Self::Component, Self::AsyncComponent];

    const fn number(self) -> u64 {
        match self {
            Self::Module => 0,
            Self::Component => 1,
            Self::AsyncComponent => 2,
        }
    }
}

/// What the runtime needs to know of a module besides its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailer {
    pub kind: Kind,
    /// Behind the last byte of linear memory that the module initializes; 0 for a component.
    pub image_end: u64,
}

/// Length of a number in a trailer.
const NUMBER: usize = size_of::<u64>();

impl Trailer {
    /// Length in bytes.
    pub const SIZE: usize = MAGIC.len() + 2 * NUMBER;

    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
        let (kind, image_end) = bytes[MAGIC.len()..].split_at_mut(NUMBER);
        kind.copy_from_slice(&self.kind.number().to_le_bytes());
        image_end.copy_from_slice(&self.image_end.to_le_bytes());
        bytes
    }

    /// The trailer of a file; `None` without one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(file: &File) -> io::Result<Option<Self>> {
        let Some(at) = file.metadata()?.len().checked_sub(Self::SIZE as u64) else {
            return Ok(None);
        };
        let mut magic = [0; MAGIC.len()];
        file.read_exact_at(&mut magic, at)?;
        let number = |index: usize| {
            let mut bytes = [0; NUMBER];
            file.read_exact_at(&mut bytes, at + (MAGIC.len() + index * NUMBER) as u64)?;
            io::Result::Ok(u64::from_le_bytes(bytes))
        };
        let (kind, image_end) = (number(0)?, number(1)?);
        let kind = Kind::ALL.into_iter().find(|known| known.number() == kind);
        Ok(kind.filter(|_| magic == MAGIC).map(|kind| Self { kind, image_end }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_trailer_is_found_at_the_end_only() {
        let trailer = Trailer { kind: Kind::Component, image_end: 0x12_3456_789a };
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(Trailer::read(&file).unwrap(), None, "too short");
        file.write_all(b"code").unwrap();
        file.write_all(&trailer.to_bytes()).unwrap();
        assert_eq!(Trailer::read(&file).unwrap(), Some(trailer));
        file.write_all(b"more").unwrap();
        assert_eq!(Trailer::read(&file).unwrap(), None);
    }
}
