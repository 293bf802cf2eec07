//! Finds a module in root-file-system layers: tar archives, plain or compressed. Runs in the shim daemon. Pure: bytes
//! in, bytes out.
//!
//! The layers are applied to a [`tree`] without contents, the lowest first. Then the layer that has the module's bytes is
//! read a second time. containerd's snapshots have the same files, but not of every image that its store has, and no
//! digest of them is checked when they are read.
//!
//! - `tree`: files, folders, links and whiteouts; `zstd`: frames of Zstandard data.
//!
//! Invariant: every length is bounded, because images are untrusted, and a few bytes of a compressed layer can stand
//! for gigabytes.

mod tree;
mod zstd;

use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::{Entry, EntryType};

use self::tree::{Added, FileId, Tree};
use self::zstd::Frames;
use cwasi_coordinator::module::MODULE_MAX;

/// Largest stored layer in bytes.
pub const LAYER_MAX: u64 = 512 << 20;
/// Most layers of one image. overlayfs takes 500.
pub const LAYERS_MAX: usize = 512;
/// Most unpacked bytes of all layers of one image.
const UNPACKED_MAX: u64 = 16 << 30;
/// Most entries of one layer.
const ENTRIES_MAX: u32 = 1 << 20;
/// Most bytes between the contents of two files of an archive: headers, long names, extended attributes.
const HEADERS_MAX: u64 = 1 << 20;
/// Longest path of a file in bytes, as in the kernel.
const PATH_MAX: usize = 4096;
/// Most names in one message.
const NAMES_SHOWN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None.
    Plain,
    /// gzip.
    Gzip,
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

/// Files of one image's layers, and the module among them that is wanted.
#[derive(Debug)]
pub struct LayerSearch {
    /// The wanted file; `None` = the only `.wasm` file.
    wanted: Option<PathBuf>,
    tree: Tree,
    /// Unpacked bytes that the layers may still have.
    left: u64,
}

/// Where the module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundModule(FileId);

impl LayerSearch {
    /// Looks for `path`, or for any module.
    #[must_use]
    pub fn new(path: Option<&str>) -> Self {
        Self { wanted: path.map(PathBuf::from), tree: Tree::new(), left: UNPACKED_MAX }
    }

    /// Applies the next layer, from the lowest up.
    ///
    /// # Errors
    /// When it is damaged or too large.
    pub fn layer(&mut self, bytes: &[u8], packing: Compression) -> Result<(), String> {
        let Self { tree, left, .. } = self;
        *left = read(bytes, packing, *left, |number, entry| {
            if let Some((path, added)) =
                added(entry, FileId { layer: tree.layer(), entry: number })?
            {
                tree.add(&path, added).map_err(io::Error::other)?;
            }
            Ok(true)
        })?;
        tree.end_layer();
        Ok(())
    }

    /// The found module.
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn end(mut self) -> Result<FoundModule, String> {
        if let Some(wanted) = &self.wanted {
            let found = self.tree.file(wanted).map_err(|error| error.to_string())?;
            let path = Path::new("/").join(wanted);
            return found
                .map(FoundModule)
                .ok_or_else(|| format!("it has no file {}", path.display()));
        }
        let found = self.tree.files(".wasm", NAMES_SHOWN);
        let mut files = found.files.into_iter();
        match (files.next(), files.next()) {
            (Some(file), None) => Ok(FoundModule(file)),
            (None, _) => Err("it has neither a Wasm layer nor a .wasm file".to_owned()),
            (Some(_), Some(_)) => {
                let names: Vec<_> =
                    found.names.iter().map(|path| path.display().to_string()).collect();
                Err(format!(
                    "it has several modules ({}) and no entrypoint that names one",
                    names.join(", ")
                ))
            }
        }
    }
}

impl FoundModule {
    /// Its layer, from 0 for the lowest.
    #[must_use]
    pub const fn layer(self) -> usize {
        self.0.layer as usize
    }

    /// Reads it from its layer. One byte more than a module may have says that it is too long.
    ///
    /// # Errors
    /// When the layer is damaged.
    pub fn read(self, layer: &[u8], packing: Compression) -> Result<Vec<u8>, String> {
        let mut module = None;
        let _left = read(layer, packing, UNPACKED_MAX, |number, entry| {
            if number == self.0.entry {
                let mut bytes = Vec::new();
                entry.take(MODULE_MAX + 1).read_to_end(&mut bytes)?;
                module = Some(bytes);
            }
            Ok(module.is_none())
        })?;
        module.ok_or_else(|| "the layer changed while it was read".to_owned())
    }
}

/// Reads the entries of a layer with at most `left` unpacked bytes, as long as `visit` wants more. Returns the rest of
/// `left`.
fn read(
    bytes: &[u8],
    packing: Compression,
    left: u64,
    visit: impl FnMut(u32, &mut Entry<'_, BoundedReader<'_, Box<dyn Read + '_>>>) -> io::Result<bool>,
) -> Result<u64, String> {
    let unpacked: Box<dyn Read> = match packing {
        Compression::Plain => Box::new(bytes),
        Compression::Gzip => Box::new(MultiGzDecoder::new(bytes)),
        Compression::Zstd => Box::new(Frames::new(bytes)),
    };
    entries(unpacked, left, visit).map_err(|error| format!("the layer cannot be read ({error})"))
}

fn entries<'a>(
    unpacked: Box<dyn Read + 'a>,
    left: u64,
    mut visit: impl FnMut(
        u32,
        &mut Entry<'_, BoundedReader<'_, Box<dyn Read + 'a>>>,
    ) -> io::Result<bool>,
) -> io::Result<u64> {
    let (headers, total) = (Cell::new(HEADERS_MAX), Cell::new(left));
    let unpacked = BoundedReader { inner: unpacked, headers: &headers, total: &total };
    let mut archive = tar::Archive::new(unpacked);
    for (number, entry) in (0..).zip(archive.entries()?) {
        if number >= ENTRIES_MAX {
            return Err(io::Error::other(format!("it has more than {ENTRIES_MAX} entries")));
        }
        let mut entry = entry?;
        headers.set(stored(&entry)?.saturating_add(HEADERS_MAX));
        if !visit(number, &mut entry)? {
            break;
        }
    }
    Ok(total.get())
}

/// What an entry adds, and where; `None` if that is no file.
fn added(entry: &mut Entry<'_, impl Read>, id: FileId) -> io::Result<Option<(PathBuf, Added)>> {
    let path = entry.path_bytes();
    if path.len() > PATH_MAX {
        return Err(io::Error::other(format!("it has a path of more than {PATH_MAX} bytes")));
    }
    let is_folder_by_name = path.ends_with(b"/") && entry.header().as_old().linkflag == [0];
    let path = entry.path()?.into_owned();
    let target = || -> io::Result<PathBuf> {
        let target = entry.link_name()?.unwrap_or_default();
        if target.as_os_str().len() > PATH_MAX {
            return Err(io::Error::other(format!("it has a link of more than {PATH_MAX} bytes")));
        }
        Ok(target.into_owned())
    };
    let added = match entry.header().entry_type() {
        EntryType::XGlobalHeader => return Ok(None),
        EntryType::Directory => Added::Folder,
        // Archives before POSIX.
        EntryType::Regular if is_folder_by_name => Added::Folder,
        EntryType::Regular => Added::File(id),
        EntryType::Symlink => Added::SymbolicLink(target()?),
        EntryType::Link => Added::HardLink(target()?),
        _ => Added::Other,
    };
    Ok(Some((path, added)))
}

/// Stored bytes of an entry; a sparse file is longer when it is read.
fn stored(entry: &Entry<'_, impl Read>) -> io::Result<u64> {
    match entry.header().entry_type() {
        EntryType::GNUSparse => entry.header().entry_size(),
        _ => Ok(entry.size()),
    }
}

/// A reader that fails after `headers` bytes, and after `total`. The `tar` crate reads names and extended headers of any
/// length into memory.
struct BoundedReader<'a, R> {
    inner: R,
    headers: &'a Cell<u64>,
    total: &'a Cell<u64>,
}

impl<R: Read> Read for BoundedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.headers.get().min(self.total.get());
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let message = if self.total.get() == 0 {
                format!("the image has more than {UNPACKED_MAX} unpacked bytes")
            } else {
                format!("it has more than {HEADERS_MAX} bytes of headers before a file")
            };
            return Err(io::Error::other(message));
        }
        let len = self.inner.read(&mut buffer[..most])?;
        self.headers.set(self.headers.get() - len as u64);
        self.total.set(self.total.get() - len as u64);
        Ok(len)
    }
}

#[cfg(test)]
mod tests;
