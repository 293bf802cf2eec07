//! Code that comes after a container's start, as OpenWhisk's `/init` delivers it: the module in it is found here, and
//! checked and compiled as a module of an image is. Runs in the shim daemon.
//!
//! Invariant: nothing of an archive is written to a file as it is, and of its entries only the module is unpacked, up to
//! [`MODULE_MAX`] bytes, and precompiled code whose signature was verified, up to the length that was signed.

use std::io::{Cursor, Read as _};

use zip::ZipArchive;
use zip::result::ZipError;

use super::module::{MAGIC, MODULE_MAX};
use super::precompiled::{OFFERS_MAX, Offer, SIGNATURE_EXTENSION, SIGNATURE_MAX};

/// Most entries of an archive. Its directory is read as a whole.
pub const ENTRIES_MAX: usize = 1024;
/// Most names in one message.
const NAMES_SHOWN: usize = 8;
/// First bytes of an archive.
const ZIP_MAGIC: &[u8; 4] = b"PK\x03\x04";
/// First bytes of each entry in an archive's directory.
const ZIP_ENTRY: &[u8; 4] = b"PK\x01\x02";

/// What comes after the start of a container that waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// The module; `None` = that of the image.
    pub module: Option<Vec<u8>>,
    /// The archive that had the module, and may have precompiled code of it.
    pub archive: Option<Vec<u8>>,
    /// The export that runs; `None` = as the module and the container's command say.
    pub export: Option<String>,
    /// More of the environment as `KEY=value`. It replaces the container's.
    pub env: Vec<String>,
}

/// Code in which there is no module.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error(
        "the code is neither a WebAssembly module nor a zip archive with one: for a module, `binary` is true and `code` its base64"
    )]
    Unknown,
    #[error("the archive cannot be read: {source}")]
    Archive {
        #[source]
        source: ZipError,
    },
    #[error("the archive has more than {ENTRIES_MAX} entries")]
    Entries,
    #[error("the archive has no file that ends with .wasm")]
    NoModule,
    #[error("the archive has {} files that end with .wasm, and a module is one: {}", .names.len(), .names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", "))]
    Several { names: Vec<String> },
    #[error("{name} in the archive is larger than the limit of {MODULE_MAX} bytes for a module")]
    TooLarge { name: String },
    #[error("{name} in the archive cannot be unpacked: {source}")]
    Unpack {
        name: String,
        #[source]
        source: std::io::Error,
    },
}

/// The module in delivered code, and the archive that it was in: the code itself, or the only file of an archive that
/// ends with `.wasm`.
///
/// # Errors
/// When there is none, or several.
pub fn module_of(code: Vec<u8>) -> Result<(Vec<u8>, Option<Vec<u8>>), DeliveryError> {
    if code.starts_with(MAGIC) {
        return Ok((code, None));
    }
    if !code.starts_with(ZIP_MAGIC) {
        return Err(DeliveryError::Unknown);
    }
    let module = unpack(&code)?;
    Ok((module, Some(code)))
}

/// The signatures of precompiled code in an archive that has a module: each file that ends with `.EXTENSION.sig`, if its
/// code is beside it. What cannot be read is left out.
#[must_use]
pub fn offers(archive: &[u8], extension: &str) -> Vec<Offer> {
    let Ok(mut archive) = ZipArchive::new(Cursor::new(archive)) else { return Vec::new() };
    let names = archive.file_names().flatten().map(String::from).collect::<Vec<_>>();
    let ending = format!(".{extension}");
    let mut codes: Vec<_> = names.iter().filter(|name| name.ends_with(&ending)).collect();
    codes.sort();
    let offer = |code: &String| {
        let file = archive.by_name(&format!("{code}.{SIGNATURE_EXTENSION}")).ok()?;
        let mut signature = Vec::new();
        // One that is too long is refused with the reason.
        file.take(SIGNATURE_MAX + 1).read_to_end(&mut signature).ok()?;
        Some(Offer { name: code.clone(), signature, place: code.clone() })
    };
    codes.into_iter().take(OFFERS_MAX).filter_map(offer).collect()
}

/// The code of an offer in an archive, which has `length` bytes.
///
/// # Errors
/// When it cannot be unpacked, for the user.
pub fn offered_code(archive: &[u8], name: &str, length: u64) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let mut archive = ZipArchive::new(Cursor::new(archive)).map_err(|error| failed(&error))?;
    let file = archive.by_name(name).map_err(|error| failed(&error))?;
    let mut code = Vec::new();
    let read = file.take(length.saturating_add(1)).read_to_end(&mut code);
    read.map(|_| code).map_err(|error| failed(&error))
}

fn unpack(code: &[u8]) -> Result<Vec<u8>, DeliveryError> {
    if code.windows(ZIP_ENTRY.len()).filter(|bytes| bytes == ZIP_ENTRY).count() > ENTRIES_MAX {
        return Err(DeliveryError::Entries);
    }
    let archived = |source| DeliveryError::Archive { source };
    let mut archive = ZipArchive::new(Cursor::new(code)).map_err(archived)?;
    let names = archive.file_names().map(|name| name.map(String::from));
    let mut names: Vec<_> = names.collect::<Result<_, _>>().map_err(archived)?;
    names.retain(|name| name.ends_with(".wasm"));
    names.sort();
    let name = match names.as_slice() {
        [] => return Err(DeliveryError::NoModule),
        [name] => name.clone(),
        _ => return Err(DeliveryError::Several { names }),
    };
    let file = archive.by_name(&name).map_err(archived)?;
    let mut module = Vec::new();
    // What the archive says about the length is not trusted.
    match file.take(MODULE_MAX + 1).read_to_end(&mut module) {
        Ok(length) if length as u64 > MODULE_MAX => Err(DeliveryError::TooLarge { name }),
        Ok(_) => Ok(module),
        Err(source) => Err(DeliveryError::Unpack { name, source }),
    }
}

/// `env` with `more`, of which each replaces one of the same name.
pub(super) fn environment(env: Vec<String>, more: &[String]) -> Vec<String> {
    let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
    let replaced: Vec<String> = more.iter().map(|entry| name(entry)).collect();
    let kept = env.into_iter().filter(|entry| !replaced.contains(&name(entry)));
    kept.chain(more.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    const MODULE: &[u8] = b"\0asm\x01\0\0\0";

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in files {
            writer.start_file(*name, SimpleFileOptions::default()).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn a_module_is_the_code_or_the_only_one_of_an_archive() {
        assert_eq!(module_of(MODULE.to_vec()).unwrap(), (MODULE.to_vec(), None));
        let zipped = archive(&[("README", b"x"), ("dir/a.wasm", MODULE)]);
        assert_eq!(module_of(zipped.clone()).unwrap(), (MODULE.to_vec(), Some(zipped)));
    }

    #[test]
    fn code_is_offered_if_its_signature_is_beside_it() {
        let zipped = archive(&[
            ("a.wasm", MODULE),
            ("a.cwasm", b"code"),
            ("a.cwasm.sig", b"signed"),
            ("alone.cwasm", b"code"),
            ("gone.cwasm.sig", b"signed"),
            ("a.so", b"other"),
            ("a.so.sig", b"signed"),
        ]);
        let (name, place) = ("a.cwasm".to_owned(), "a.cwasm".to_owned());
        assert_eq!(
            offers(&zipped, "cwasm"),
            [Offer { name, signature: b"signed".to_vec(), place }]
        );
        assert_eq!(offered_code(&zipped, "a.cwasm", 4).unwrap(), b"code");
        assert_eq!(offered_code(&zipped, "a.cwasm", 2).unwrap(), b"cod", "one more than signed");
        offered_code(&zipped, "b.cwasm", 4).unwrap_err();
        assert_eq!(offers(MODULE, "cwasm"), []);
    }

    #[test]
    fn all_else_is_refused_with_its_reason() {
        let damaged = {
            let mut bytes = archive(&[("a.wasm", &[7; 1000])]);
            bytes.truncate(bytes.len() - 10);
            bytes
        };
        let many: Vec<_> = (0..=ENTRIES_MAX).map(|number| format!("{number}.txt")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), &b""[..])).collect();
        for (code, part) in [
            (b"function main() {}".to_vec(), "neither"),
            (Vec::new(), "neither"),
            (damaged, "cannot be read"),
            (archive(&[("README", b"x")]), "no file that ends with .wasm"),
            (archive(&[("a.wasm", MODULE), ("b.wasm", MODULE)]), "2 files that end with .wasm"),
            (archive(&many), "more than 1024 entries"),
        ] {
            let error = module_of(code).unwrap_err().to_string();
            assert!(error.contains(part), "{part} missing in: {error}");
        }
    }

    #[test]
    fn a_bomb_is_unpacked_to_the_limit_only() {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file("a.wasm", SimpleFileOptions::default()).unwrap();
        let zeros = vec![0; 1 << 20];
        for _ in 0..=MODULE_MAX >> 20 {
            writer.write_all(&zeros).unwrap();
        }
        let bomb = writer.finish().unwrap().into_inner();
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(module_of(bomb), Err(DeliveryError::TooLarge { .. })));
    }

    #[test]
    fn delivered_variables_replace_the_containers() {
        let env = |all: &[&str]| all.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>();
        let all = environment(env(&["A=1", "B=2"]), &env(&["B=3", "C="]));
        assert_eq!(all, env(&["A=1", "B=3", "C="]));
    }

    proptest::proptest! {
        #[test]
        fn damaged_archives_never_panic(index in 0_usize..120, value: u8) {
            let mut bytes = archive(&[("a.wasm", MODULE)]);
            let index = index % bytes.len();
            bytes[index] = value;
            drop(module_of(bytes));
        }
    }
}
