//! A `cwasi:function/payload-handler` for benches that reads nothing of its payload.
#![expect(missing_docs, reason = "generated")]

use cwasi::calls::types::Payload;
use cwasi_bench_protocol::payload::Seen;
use exports::cwasi::function::payload_handler::Guest;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/payload-function",
    generate_all,
});

struct TouchNone;

impl Guest for TouchNone {
    fn handle(payload: Payload) -> Result<Payload, String> {
        // WASI's clock begins with the component: only whole calls can be measured.
        Ok(Payload::new(&Seen { at: 0, sum: payload.length() }.to_bytes()))
    }
}

export!(TouchNone);
