//! Tests of the search for modules in layers.

use std::io::Write as _;

use super::*;

/// One entry of a layer.
enum E<'a> {
    File(&'a str, &'a [u8]),
    Folder(&'a str),
    Symlink(&'a str, &'a str),
    Hardlink(&'a str, &'a str),
}

use E::{File, Folder, Hardlink, Symlink};

fn layer(entries: &[E<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o755);
        match entry {
            File(path, bytes) => {
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, *bytes).unwrap();
            }
            Folder(path) => {
                header.set_entry_type(EntryType::Directory);
                tar.append_data(&mut header, path, io::empty()).unwrap();
            }
            Symlink(path, target) => {
                header.set_entry_type(EntryType::Symlink);
                tar.append_link(&mut header, path, target).unwrap();
            }
            Hardlink(path, target) => {
                header.set_entry_type(EntryType::Link);
                tar.append_link(&mut header, path, target).unwrap();
            }
        }
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

/// The module at `path` of layers, the lowest first.
fn found(path: Option<&str>, layers: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    let mut search = LayerSearch::new(path);
    for bytes in layers {
        search.layer(bytes, Compression::Plain)?;
    }
    let found = search.end()?;
    found.read(&layers[found.layer()], Compression::Plain)
}

#[test]
fn a_module_is_found_however_it_is_packed() {
    let tar = layer(&[File("./etc/hosts", b"x"), File("./lib/m.wasm", b"module")]);
    for (packed, packing) in [
        (tar.clone(), Compression::Plain),
        (gzip(&tar), Compression::Gzip),
        ([gzip(&tar[..700]), gzip(&tar[700..])].concat(), Compression::Gzip),
        (zstd(&tar), Compression::Zstd),
    ] {
        for path in [Some("/lib/m.wasm"), Some("lib/../lib/m.wasm"), None] {
            let mut search = LayerSearch::new(path);
            search.layer(&packed, packing).unwrap();
            let found = search.end().unwrap();
            assert_eq!(found.read(&packed, packing).unwrap(), b"module", "{packing:?} {path:?}");
        }
    }
}

#[test]
fn zstandard_data_may_have_many_frames_and_some_to_skip() {
    let tar = layer(&[File("etc/hosts", &[7; 5000]), File("m.wasm", b"module")]);
    let skipped = [&0x184D_2A53_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let mut packed = skipped.clone();
    for part in tar.chunks(700) {
        packed.extend(zstd(part));
        packed.extend(&skipped);
    }
    let mut search = LayerSearch::new(None);
    search.layer(&packed, Compression::Zstd).unwrap();
    assert_eq!(search.end().unwrap().read(&packed, Compression::Zstd).unwrap(), b"module");
    let cut = [&packed[..], &skipped[..skipped.len() - 1]].concat();
    let mut unpacked = Vec::new();
    assert!(Frames::new(&cut).read_to_end(&mut unpacked).is_err());
    assert_eq!(unpacked, tar);
}

/// What upper layers do to `app/m.wasm` of the lowest, as overlayfs shows it. `None`: no file is there any more.
#[test]
fn upper_layers_replace_and_remove() {
    let lower = || layer(&[Folder("app"), File("app/m.wasm", b"old"), File("b", b"b")]);
    let gone: Option<&[u8]> = None;
    for (what, upper, expected) in [
        ("a new file", vec![File("app/m.wasm", b"new")], Some(&b"new"[..])),
        ("whiteout of the file", vec![File("app/.wh.m.wasm", b"")], gone),
        ("whiteout of the folder", vec![File(".wh.app", b"")], gone),
        ("opaque folder", vec![Folder("app"), File("app/.wh..wh..opq", b"")], gone),
        ("opaque with another", vec![File("app/.wh..wh..opq", b""), File("app/n", b"n")], gone),
        ("another, then opaque", vec![File("app/n", b"n"), File("app/.wh..wh..opq", b"")], gone),
        ("opaque root", vec![File(".wh..wh..opq", b"")], gone),
        ("folder to file", vec![File("app", b"f")], gone),
        ("folder to symlink", vec![Symlink("app", "/etc")], gone),
        ("file to symlink", vec![Symlink("app/m.wasm", "/nowhere")], gone),
        ("file to symlink of a file", vec![Symlink("app/m.wasm", "../b")], Some(b"b")),
        ("file to hard link", vec![Hardlink("app/m.wasm", "b")], Some(b"b")),
        ("file to folder", vec![Folder("app/m.wasm")], gone),
        ("file to folder with a file", vec![File("app/m.wasm/x", b"")], gone),
        ("folder stays folder", vec![Folder("app")], Some(b"old")),
        (
            "a whiteout hides nothing of its layer",
            vec![File(".wh.app", b""), File("app/m.wasm", b"new")],
            Some(b"new"),
        ),
        (
            "whatever the order",
            vec![File("app/m.wasm", b"new"), File(".wh.app", b"")],
            Some(b"new"),
        ),
        (
            "files of aufs",
            vec![File(".wh..wh.plnk/1.2", b""), File("app/.wh..wh.aufs", b"")],
            Some(b"old"),
        ),
        (
            "away and back",
            vec![File("app", b"f"), Folder("app"), File("app/m.wasm", b"new")],
            Some(b"new"),
        ),
    ] {
        let upper = layer(&upper);
        let module = found(Some("/app/m.wasm"), &[lower(), upper.clone()]);
        let missing = Err("it has no file /app/m.wasm".to_owned());
        assert_eq!(module, expected.map_or(missing, |bytes| Ok(bytes.to_vec())), "{what}");
        // A third layer brings it back.
        let back = layer(&[File("app/m.wasm", b"back")]);
        assert_eq!(found(Some("/app/m.wasm"), &[lower(), upper, back]).unwrap(), b"back", "{what}");
    }
}

#[test]
fn modules_without_a_name_are_those_that_are_left() {
    let lower = layer(&[File("a.wasm", b"a"), File("dir/b.wasm", b"b"), File("dir/x", b"x")]);
    let removed = layer(&[File(".wh.dir", b"")]);
    assert_eq!(found(None, &[lower.clone(), removed]).unwrap(), b"a");
    let linked = layer(&[File(".wh.dir", b""), Hardlink("again.wasm", "a.wasm")]);
    assert_eq!(found(None, &[lower.clone(), linked]).unwrap(), b"a", "two names of one file");
    let none = layer(&[File("dir/.wh.b.wasm", b""), Symlink("a.wasm", "dir/x")]);
    assert!(found(None, &[lower, none]).unwrap_err().contains("neither"));
}

#[test]
fn links_lead_where_they_lead_in_the_container() {
    let lower = layer(&[
        File("opt/real/m.wasm", b"module"),
        Symlink("app", "/opt/current"),
        Symlink("opt/current", "../opt/real"),
        Symlink("out", "../../../opt/real/m.wasm"),
        Symlink("round", "round"),
    ]);
    let path = |path, layers: &[Vec<u8>]| found(Some(path), layers);
    let one = [lower.clone()];
    for name in ["/app/m.wasm", "/out", "app/../current/m.wasm"] {
        assert_eq!(path(name, &one).unwrap(), b"module", "{name}");
    }
    assert!(path("/round", &one).unwrap_err().contains("more than 40 symbolic links"));
    // A layer follows its own links; a lower layer's link becomes a folder, as with overlayfs.
    let own = layer(&[Symlink("lib", "usr/lib"), File("lib/m.wasm", b"own")]);
    assert_eq!(path("/usr/lib/m.wasm", &[own]).unwrap(), b"own");
    let over = layer(&[File("app/n.wasm", b"n")]);
    assert_eq!(path("/app/n.wasm", &[lower.clone(), over.clone()]).unwrap(), b"n");
    assert!(path("/app/m.wasm", &[lower.clone(), over]).is_err());
    // A hard link keeps the file that it was made of.
    let hard = layer(&[Hardlink("h.wasm", "opt/real/m.wasm"), File("opt/real/m.wasm", b"new")]);
    assert_eq!(path("/h.wasm", &[lower, hard]).unwrap(), b"module");
    for (entries, part) in [
        (vec![Hardlink("h", "missing")], "which is no file"),
        (vec![File("a", b""), File("a/b", b"")], "a/b is below a file"),
        (vec![File(".wh...", b"")], "no whiteout"),
    ] {
        let error = path("/h", &[layer(&entries)]).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_cannot_be_told_is_said() {
    let two = layer(&[File("a.wasm", b"a"), File("b.wasm", b"b")]);
    assert!(found(None, &[two]).unwrap_err().contains("(/a.wasm, /b.wasm)"));
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
}

#[test]
fn names_and_steps_are_bounded() {
    let mut tree = Tree::new();
    let deep = "a/".repeat(2000);
    let mut number = 0;
    let error = loop {
        number += 1;
        if let Err(error) = tree.add(Path::new(&format!("{number}/{deep}f")), Added::Other) {
            break error;
        }
    };
    assert!(error.to_string().contains("more than 1048576 files"), "{error}");
    assert!(number < 600, "{number}");

    let mut tree = Tree::new();
    tree.add(Path::new("d"), Added::Folder).unwrap();
    tree.add(Path::new("s"), Added::SymbolicLink("d/../".repeat(800).into())).unwrap();
    let slow = "s/".repeat(30);
    let error = loop {
        if let Err(error) = tree.add(Path::new(&format!("{slow}f")), Added::Other) {
            break error;
        }
    };
    assert!(error.to_string().contains("more than 16777216 steps"), "{error}");
}

#[test]
fn a_file_that_comes_twice_counts_as_it_came_last() {
    let below = layer(&[File("b.wasm", b"b"), File("a.wasm", b"below")]);
    let twice = layer(&[File("a.wasm", b"old"), File(".wh.b.wasm", b""), File("a.wasm", b"new")]);
    assert_eq!(found(None, &[below, twice]).unwrap(), b"new");
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
