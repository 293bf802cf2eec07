//! End to end on a real containerd: modules to embed come out of images of several layers as their containers have
//! them, and content without its digest is not embedded.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs;
use std::path::Path;

use cwasi_testbed::image::{Layer, Start, write_layers};
use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::run::Outcome;
use cwasi_testbed::scene::{Scene, guests_dir};
use oci_spec::image::MediaType;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// The module's path in every image.
const MODULE: &str = "/app/m.wasm";
/// Bytes of an archive in one frame of Zstandard data.
const FRAME: usize = 16 * 1024;

/// One entry of a layer.
#[derive(Clone, Copy)]
enum Entry<'a> {
    File(&'a str, &'a [u8]),
    Symlink(&'a str, &'a str),
    HardLink(&'a str, &'a str),
}

use Entry::{File, HardLink, Symlink};

use crate::SHIM;

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_size(0);
        match entry {
            File(path, bytes) => {
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, *bytes).unwrap();
            }
            Symlink(path, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                tar.append_link(&mut header, path, target).unwrap();
            }
            HardLink(path, target) => {
                header.set_entry_type(tar::EntryType::Link);
                tar.append_link(&mut header, path, target).unwrap();
            }
        }
    }
    tar.into_inner().unwrap()
}

fn server() -> Vec<u8> {
    fs::read(guests_dir(Path::new(SHIM).parent().unwrap()).join("server.wasm")).unwrap()
}

/// Imports and unpacks an image of these layers, the lowest first.
fn import(scene: &Scene, name: &str, layers: Vec<Layer>) -> String {
    let reference = format!("localhost/{name}:test");
    let archive = scene.node.path().join(format!("{name}.tar"));
    let start = Start { entrypoint: vec![MODULE.into()], ..Start::default() };
    write_layers(layers, &reference, &start, &archive).unwrap();
    let _imported = scene.ctr(["images", "import", archive.to_str().unwrap()]).success();
    reference
}

fn gzip(entries: &[Entry<'_>]) -> Layer {
    Layer::gzip(&archive(entries)).unwrap()
}

/// What a caller gets from the image's module in its own VM.
fn embedded(scene: &Scene, id: &str, image: &str) -> Outcome {
    let run = scene.guest(id, "probe").args(["call", "inside", "hello"]);
    let run = run.annotation("cwasi.workflow", "w").annotation("cwasi.mode", "embedded");
    scene.run(run.annotation("cwasi.embed", &format!("inside={image}")))
}

#[test]
fn the_module_that_the_container_would_start_is_embedded() {
    let scene = Scene::new(SHIM, "layers-replaced");
    let (module, old) = (server(), wat::parse_str(r#"(module (func (export "_start")))"#).unwrap());
    let (lib, from_opt) = (File("lib/n.wasm", &module), File("opt/m.wasm", &module));
    let frames = |entries: &[Entry<'_>]| {
        let tar = archive(entries);
        let packed =
            tar.chunks(FRAME).flat_map(|part| compress_to_vec(part, CompressionLevel::Fastest));
        Layer::packed(MediaType::ImageLayerZstd, packed.collect(), &tar)
    };
    let lower = || gzip(&[File("app/m.wasm", &old)]);
    for (name, layers) in [
        ("newer", vec![lower(), gzip(&[File("app/m.wasm", &module)])]),
        ("symlink", vec![lower(), gzip(&[lib, Symlink("app/m.wasm", "../lib/n.wasm")])]),
        ("hard-link", vec![lower(), gzip(&[lib, HardLink("app/m.wasm", "lib/n.wasm")])]),
        ("folder-link", vec![lower(), gzip(&[from_opt, Symlink("app", "opt")])]),
        ("frames", vec![lower(), frames(&[File("app/m.wasm", &module)])]),
    ] {
        let image = import(&scene, name, layers);
        let run = scene.image(&image, &format!("{name}-alone")).args([MODULE]);
        scene.start(run.annotation("cwasi.role", "secondary"));
        assert_eq!(embedded(&scene, name, &image).success().text(), "hello", "{name}");
    }
}

#[test]
fn content_that_changed_on_disk_is_not_embedded() {
    let scene = Scene::alone(ContainerdVersion::V1_6, SHIM, "layers-damaged");
    let layer = gzip(&[File("app/m.wasm", &server())]);
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&layer.bytes));
    let bytes = layer.bytes.clone();
    let image = import(&scene, "damaged", vec![layer]);
    assert_eq!(embedded(&scene, "whole", &image).success().text(), "hello");
    let blobs = "root/io.containerd.content.v1.content/blobs/sha256";
    let blob = scene.containerd.ready().dir.join(blobs).join(&digest);
    let other = gzip(&[File("app/m.wasm", b"other")]);
    fs::write(&blob, other.bytes).unwrap_or_else(|error| panic!("{}: {error}", blob.display()));
    let outcome = embedded(&scene, "damaged", &image);
    fs::write(&blob, bytes).unwrap();
    assert_ne!(outcome.code, 0);
    assert!(
        outcome.stderr.contains(&format!("content sha256:{digest} is damaged")),
        "{}",
        outcome.stderr
    );
}
