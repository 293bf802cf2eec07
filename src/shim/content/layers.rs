//! Finds a module in root-file-system layers: tar archives, plain or compressed. Runs in the shim daemon. Pure: bytes
//! in, bytes out.
//!
//! Invariant: every length is bounded, because images are untrusted, and a few bytes of a compressed layer can stand
//! for gigabytes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Component, Path};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use tar::EntryType;

use crate::coordinator::module::MODULE_MAX;

/// Largest stored layer in bytes.
pub const LAYER_MAX: u64 = 512 << 20;
/// Most unpacked bytes of one layer.
const UNPACKED_MAX: u64 = 4 << 30;
/// Most entries of one layer.
const ENTRIES_MAX: usize = 1 << 20;
/// Most bytes between the contents of two files of an archive: headers, long names, extended attributes.
const HEADERS_MAX: u64 = 1 << 20;
/// Longest path of a file in bytes, as in the kernel.
const PATH_MAX: usize = 4096;
/// Most modules of one image.
const FOUND_MAX: usize = 1024;
/// Most names in one message.
const NAMES_SHOWN: usize = 8;
/// Prefix of a name that marks the file as removed.
const WHITEOUT: &str = ".wh.";

/// A layer's compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None.
    Plain,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// From a layer's media type, OCI's or Docker's; `None` if it is not a layer of a root file system.
    #[must_use]
    pub fn of(media_type: &str) -> Option<Self> {
        let layer = media_type.contains(".layer.") || media_type.contains(".rootfs.");
        match media_type {
            _ if !layer || !media_type.contains("tar") => None,
            text if text.ends_with("gzip") => Some(Self::Gzip),
            text if text.ends_with("zstd") => Some(Self::Zstd),
            text if text.ends_with("tar") => Some(Self::Plain),
            _ => None,
        }
    }
}

/// Modules in the layers of one image, uppermost layer first.
#[derive(Debug, Default)]
pub struct LayerSearch {
    /// The wanted file, normalized; `None` = any `.wasm` file.
    wanted: Option<String>,
    /// Found modules; `None` for a file that an upper layer removed. Only the first module keeps its bytes: a second
    /// one makes the image ambiguous.
    found: BTreeMap<String, Option<Vec<u8>>>,
}

impl LayerSearch {
    /// Looks for `path`, or for any module.
    #[must_use]
    pub fn new(path: Option<&str>) -> Self {
        Self { wanted: path.map(|path| normal(Path::new(path))), found: BTreeMap::new() }
    }

    /// True if lower layers cannot change the result.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| self.found.contains_key(wanted))
    }

    /// Searches the next lower layer.
    ///
    /// # Errors
    /// When it is damaged or too large.
    pub fn layer(&mut self, bytes: &[u8], packing: Compression) -> Result<(), String> {
        let damaged = |error: io::Error| format!("the layer cannot be read ({error})");
        match packing {
            Compression::Plain => self.tar(bytes),
            Compression::Gzip => self.tar(MultiGzDecoder::new(bytes)),
            Compression::Zstd => {
                let decoder = StreamingDecoder::new(bytes).map_err(io::Error::other);
                decoder.and_then(|decoder| self.tar(decoder))
            }
        }
        .map_err(damaged)
    }

    fn tar(&mut self, unpacked: impl Read) -> io::Result<()> {
        let left = Cell::new(HEADERS_MAX);
        let unpacked = BoundedReader { inner: unpacked.take(UNPACKED_MAX), left: &left };
        let mut archive = tar::Archive::new(unpacked);
        let mut here = BTreeMap::new();
        let above = self.found.values().any(Option::is_some);
        let mut kept: Option<String> = None;
        for entry in archive.entries()?.take(ENTRIES_MAX) {
            let mut entry = entry?;
            left.set(stored(&entry)?.saturating_add(HEADERS_MAX));
            if entry.path_bytes().len() > PATH_MAX {
                continue;
            }
            let path = normal(&entry.path()?);
            if let Some(file) = removed(&path) {
                if self.is_wanted(&file) {
                    here.entry(file).or_insert(None);
                }
            } else if self.is_wanted(&path)
                && entry.header().entry_type() == EntryType::Regular
                && !self.found.contains_key(&path)
            {
                let mut bytes = Vec::new();
                if !above && *kept.get_or_insert_with(|| path.clone()) == path {
                    entry.by_ref().take(MODULE_MAX + 1).read_to_end(&mut bytes)?;
                }
                here.insert(path, Some(bytes));
            }
            if self.found.len() + here.len() > FOUND_MAX {
                return Err(io::Error::other(format!("it has more than {FOUND_MAX} modules")));
            }
        }
        for (path, bytes) in here {
            // Upper layers take precedence.
            self.found.entry(path).or_insert(bytes);
        }
        Ok(())
    }

    fn is_wanted(&self, path: &str) -> bool {
        match &self.wanted {
            Some(wanted) => path == wanted,
            None => path.ends_with(".wasm"),
        }
    }

    /// The found module.
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn end(self) -> Result<Vec<u8>, String> {
        let mut modules: Vec<(String, Vec<u8>)> =
            self.found.into_iter().filter_map(|(path, bytes)| Some((path, bytes?))).collect();
        match (modules.len(), self.wanted) {
            (1, _) => Ok(modules.remove(0).1),
            (_, Some(wanted)) => Err(format!("it has no file /{wanted}")),
            (0, None) => Err("it has neither a Wasm layer nor a .wasm file".to_owned()),
            (_, None) => {
                let names: Vec<_> =
                    modules.iter().take(NAMES_SHOWN).map(|(path, _)| format!("/{path}")).collect();
                Err(format!(
                    "it has several modules ({}) and no entrypoint that names one",
                    names.join(", ")
                ))
            }
        }
    }
}

/// The file that this entry removes; `None` if the entry is a file.
fn removed(path: &str) -> Option<String> {
    match path.rsplit_once('/') {
        None => path.strip_prefix(WHITEOUT).map(str::to_owned),
        Some((folder, name)) => name.strip_prefix(WHITEOUT).map(|file| format!("{folder}/{file}")),
    }
}

/// Stored bytes of an entry; a sparse file is longer when it is read.
fn stored(entry: &tar::Entry<'_, impl Read>) -> io::Result<u64> {
    match entry.header().entry_type() {
        EntryType::GNUSparse => entry.header().entry_size(),
        _ => Ok(entry.size()),
    }
}

/// A reader that fails after `left` bytes. The `tar` crate reads names and extended headers of any length into
/// memory.
struct BoundedReader<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for BoundedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let message = format!("it has more than {HEADERS_MAX} bytes of headers before a file");
            return Err(io::Error::other(message));
        }
        let len = self.inner.read(&mut buffer[..most])?;
        self.left.set(self.left.get() - len as u64);
        Ok(len)
    }
}

/// The path without leading `/`, `.` and `..`, for comparing names of archives with paths of images.
fn normal(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, *bytes).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn a_module_is_found_however_it_is_packed() {
        let tar = layer(&[("./etc/hosts", b"x"), ("./lib/m.wasm", b"module")]);
        for (packed, packing) in [
            (tar.clone(), Compression::Plain),
            (gzip(&tar), Compression::Gzip),
            (zstd(&tar), Compression::Zstd),
        ] {
            for path in [Some("/lib/m.wasm"), Some("lib/../lib/m.wasm"), None] {
                let mut search = LayerSearch::new(path);
                search.layer(&packed, packing).unwrap();
                assert_eq!(search.end().unwrap(), b"module", "{packing:?} {path:?}");
            }
        }
    }

    #[test]
    fn upper_layers_win_and_remove() {
        let upper = layer(&[("a.wasm", b"new"), ("dir/.wh.b.wasm", b"")]);
        let lower = layer(&[("a.wasm", b"old"), ("dir/b.wasm", b"b")]);
        let mut search = LayerSearch::new(None);
        for bytes in [&upper, &lower] {
            search.layer(bytes, Compression::Plain).unwrap();
        }
        assert_eq!(search.end().unwrap(), b"new");
        let mut search = LayerSearch::new(Some("/dir/b.wasm"));
        search.layer(&upper, Compression::Plain).unwrap();
        assert!(search.is_over());
        search.layer(&lower, Compression::Plain).unwrap();
        assert_eq!(search.end().unwrap_err(), "it has no file /dir/b.wasm");
    }

    #[test]
    fn what_cannot_be_told_is_said() {
        let mut search = LayerSearch::new(None);
        search.layer(&layer(&[("a.wasm", b"a"), ("b.wasm", b"b")]), Compression::Plain).unwrap();
        assert!(search.end().unwrap_err().contains("(/a.wasm, /b.wasm)"));
        assert!(LayerSearch::new(None).end().unwrap_err().contains("neither"));
        for packing in [Compression::Plain, Compression::Gzip, Compression::Zstd] {
            let damaged = [7; 2000];
            assert!(LayerSearch::new(None).layer(&damaged, packing).is_err(), "{packing:?}");
        }
    }

    #[test]
    fn few_bytes_that_stand_for_many_take_no_memory() {
        // A name of 64 MiB, as GNU tar writes long names.
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(64 << 20);
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_data(&mut header, "name", io::repeat(b'a').take(64 << 20)).unwrap();
        let long_name = tar.into_inner().unwrap();
        let error = LayerSearch::new(None).layer(&gzip(&long_name), Compression::Gzip).unwrap_err();
        assert!(error.contains("1048576 bytes of headers"), "{error}");

        let modules: Vec<_> = (0..=FOUND_MAX).map(|number| format!("{number}.wasm")).collect();
        let files: Vec<_> = modules.iter().map(|path| (path.as_str(), &b"module"[..])).collect();
        let twice = [&files[..FOUND_MAX], &files[..FOUND_MAX]].concat();
        let mut search = LayerSearch::new(None);
        search.layer(&layer(&twice), Compression::Plain).unwrap();
        let kept = search.found.values().flatten().map(Vec::len).sum::<usize>();
        assert_eq!(kept, b"module".len(), "one of them at most is the module");
        assert!(search.end().unwrap_err().contains("several modules"));
        let error = LayerSearch::new(None).layer(&layer(&files), Compression::Plain).unwrap_err();
        assert!(error.contains("more than 1024 modules"), "{error}");
    }

    #[test]
    fn a_file_that_comes_twice_counts_as_it_came_last() {
        let twice = layer(&[("a.wasm", b"old"), (".wh.b.wasm", b""), ("a.wasm", b"new")]);
        let below = layer(&[("b.wasm", b"b"), ("a.wasm", b"below")]);
        let mut search = LayerSearch::new(None);
        search.layer(&twice, Compression::Plain).unwrap();
        search.layer(&below, Compression::Plain).unwrap();
        assert_eq!(search.end().unwrap(), b"new");
    }

    #[test]
    fn media_types_tell_the_packing() {
        for (media_type, packing) in [
            ("application/vnd.oci.image.layer.v1.tar", Some(Compression::Plain)),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Compression::Zstd)),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip)),
            ("application/vnd.docker.image.rootfs.diff.tar", Some(Compression::Plain)),
            ("application/vnd.wasm.content.layer.v1+wasm", None),
            ("application/vnd.oci.image.layer.v1.tar+unknown", None),
        ] {
            assert_eq!(Compression::of(media_type), packing, "{media_type}");
        }
    }
}
