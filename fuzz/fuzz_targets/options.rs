//! Runtime options on the standard input of `start` (`shim::options`).
#![no_main]

use cwasi_fuzz::memory::{PROTOBUF, bounded_beside};
use cwasi_shim::options::{ConfigSource, decode};
use libfuzzer_sys::fuzz_target;
use protobuf::Message as _;
use protobuf::well_known_types::any::Any;

fuzz_target!(|data: &[u8]| {
    if let Ok(options) = bounded_beside(PROTOBUF, data, 128, || decode(data)) {
        let found = match options.source {
            ConfigSource::Default => 0,
            ConfigSource::Body(body) => body.len(),
            ConfigSource::Path(path) => path.as_os_str().len(),
        };
        assert!(found <= data.len());
    }
    // Whatever text is configured comes through.
    let Ok(text) = str::from_utf8(data) else { return };
    if text.is_empty() {
        return;
    }
    let mut value = Vec::new();
    let mut stream = protobuf::CodedOutputStream::vec(&mut value);
    stream.write_bytes(3, data).and_then(|()| stream.flush()).expect("memory");
    drop(stream);
    let any = Any { type_url: "runtimeoptions.v1.Options".to_owned(), value, ..Any::default() };
    let bytes = any.write_to_bytes().expect("memory");
    assert_eq!(decode(&bytes).expect("options").source, ConfigSource::Body(text.to_owned()));
});
