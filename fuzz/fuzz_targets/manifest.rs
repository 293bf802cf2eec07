//! An image's manifest, index and configuration (`content`).
#![no_main]

use cwasi_content::layers::Compression;
use cwasi_content::manifest::{Target, WASM_MEDIA_TYPES, started_module, wasm_layer};
use cwasi_fuzz::memory::bounded;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match bounded(data, 128, || Target::read(data)) {
        Ok(Target::Manifest(manifest)) => {
            let layer = wasm_layer(&manifest);
            let is_wasm = |kind: &str| WASM_MEDIA_TYPES.contains(&kind);
            let kinds: Vec<String> =
                manifest.layers().iter().map(|layer| layer.media_type().to_string()).collect();
            let modules = kinds.iter().filter(|kind| is_wasm(kind)).count();
            match layer {
                Ok(layer) => assert_eq!(usize::from(layer.is_some()), modules),
                Err(_several) => assert!(modules > 1),
            }
            // A module is no layer of a root file system.
            assert!(!kinds.iter().any(|kind| is_wasm(kind) && Compression::of(kind).is_some()));
        }
        Ok(Target::Index(index)) => {
            for descriptor in index.manifests() {
                assert!(!descriptor.digest().to_string().is_empty());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(path) = bounded(data, 256, || started_module(data)) {
        // Its folder may have a `#` in its name; the command's is the export's.
        assert!(path.ends_with(".wasm"));
        assert!(!path.rsplit('/').next().is_some_and(|file| file.contains('#')), "{path}");
    }
});
