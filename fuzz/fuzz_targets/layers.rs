//! Layers of an image (`content::layers`): any bytes, or archives of any entries whose checksums are right.
#![no_main]

use std::io::Write as _;

use arbitrary::{Arbitrary, Unstructured};
use cwasi_content::layers::{Compression, LayerSearch};
use cwasi_fuzz::memory::within;
use libfuzzer_sys::fuzz_target;

/// Memory that an archive's headers may take, while they grow.
const HEADERS: usize = 8 << 20;
/// Memory that a byte of a compressed layer may take: what it stands for, while it grows.
const GZIP: usize = 4 * 1100;
/// Most that a Zstandard frame's window takes, and what a few bytes stand for.
const ZSTD: usize = 512 << 20;
/// Entries of an archive.
const ENTRIES_MAX: usize = 16;

#[derive(Arbitrary, Debug)]
struct Entry<'a> {
    name: Name<'a>,
    kind: EntryKind<'a>,
    /// Length that its header says, when it is not the content's.
    length: Option<u64>,
    content: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Name<'a> {
    Module(u8),
    Removed(u8),
    Opaque,
    Wanted,
    Parent,
    Above,
    Any(&'a [u8]),
}

#[derive(Arbitrary, Debug)]
enum EntryKind<'a> {
    File,
    LongName,
    Pax,
    Sparse,
    Folder,
    HardLink(Name<'a>),
    SymbolicLink(Name<'a>),
    Any(u8),
}

impl Name<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Module(number) => format!("lib/{}.wasm", number & 3).into_bytes(),
            Self::Removed(number) => format!("lib/.wh.{}.wasm", number & 3).into_bytes(),
            Self::Opaque => b"app/.wh..wh..opq".to_vec(),
            Self::Parent => b"app".to_vec(),
            Self::Wanted => b"./app/m.wasm".to_vec(),
            Self::Above => b"../x/../app/m.wasm".to_vec(),
            Self::Any(bytes) => bytes[..bytes.len().min(100)].to_vec(),
        }
    }
}

impl Entry<'_> {
    fn append(&self, archive: &mut Vec<u8>) {
        let mut header = tar::Header::new_gnu();
        let name = self.name.bytes();
        header.as_mut_bytes()[..name.len()].copy_from_slice(&name);
        header.as_mut_bytes()[156] = match &self.kind {
            EntryKind::File => b'0',
            EntryKind::LongName => b'L',
            EntryKind::Pax => b'x',
            EntryKind::Sparse => b'S',
            EntryKind::Folder => b'5',
            EntryKind::HardLink(_) => b'1',
            EntryKind::SymbolicLink(_) => b'2',
            EntryKind::Any(kind) => *kind,
        };
        if let EntryKind::HardLink(target) | EntryKind::SymbolicLink(target) = &self.kind {
            let target = target.bytes();
            header.as_mut_bytes()[157..][..target.len()].copy_from_slice(&target);
        }
        header.set_size(self.length.unwrap_or(self.content.len() as u64));
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(self.content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let compression =
        [Compression::Plain, Compression::Gzip, Compression::Zstd][usize::from(choice & 3) % 3];
    let path = (choice & 4 != 0).then_some("/app/m.wasm");
    if choice & 8 != 0 {
        let found = search(rest, compression, path);
        check(found, (compression == Compression::Plain).then_some(rest));
        return;
    }
    let mut archive = Vec::new();
    let mut rest = Unstructured::new(rest);
    let entries = rest.arbitrary_iter::<Entry<'_>>().into_iter().flatten();
    entries.flatten().take(ENTRIES_MAX).for_each(|entry| entry.append(&mut archive));
    let layer = match compression {
        Compression::Plain | Compression::Zstd => archive.clone(),
        Compression::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
            gzip.write_all(&archive).expect("memory");
            gzip.finish().expect("memory")
        }
    };
    let compression =
        if compression == Compression::Zstd { Compression::Plain } else { compression };
    check(search(&layer, compression, path), Some(&archive));
});

fn search(layer: &[u8], compression: Compression, path: Option<&str>) -> Option<Vec<u8>> {
    let room = match compression {
        Compression::Plain => HEADERS + 4 * layer.len(),
        Compression::Gzip => HEADERS + GZIP * layer.len(),
        Compression::Zstd => ZSTD,
    };
    within(room, || {
        let mut search = LayerSearch::new(path);
        search.layer(layer, compression).ok()?;
        search.end().ok()?.read(layer, compression).ok()
    })
}

/// A module is a part of the archive, whatever its headers say.
fn check(found: Option<Vec<u8>>, archive: Option<&[u8]>) {
    let (Some(found), Some(archive)) = (found, archive) else { return };
    assert!(found.len() <= archive.len());
    let mut starts = (0..archive.len()).step_by(512).chain([archive.len()]);
    assert!(starts.any(|start| archive[start..].starts_with(&found)), "not in the archive");
}
