//! A `cwasi:function/payload-handler` for benches that reads every byte of its payload.
#![expect(missing_docs, reason = "generated")]

use cwasi::calls::types::Payload;
use cwasi_bench_protocol::payload::{Seen, Sum};
use exports::cwasi::function::payload_handler::Guest;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/payload-function",
    generate_all,
});

struct TouchAll;

impl Guest for TouchAll {
    fn handle(payload: Payload) -> Result<Payload, String> {
        // WASI's clock begins with the component: only whole calls can be measured.
        let sum = Sum::of(&payload.read(0, payload.length()));
        Ok(Payload::new(&Seen { at: 0, sum }.to_bytes()))
    }
}

export!(TouchAll);
