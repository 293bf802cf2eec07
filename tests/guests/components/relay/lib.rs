//! A `cwasi:function/payload-handler` that passes each payload on to `sink`, and returns its response. It reads none of
//! the bytes.
#![expect(missing_docs, reason = "generated")]

use cwasi::calls::calls;
use cwasi::calls::types::Payload;
use exports::cwasi::function::payload_handler::Guest;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/payload-function",
    generate_all,
});

struct Relay;

impl Guest for Relay {
    fn handle(payload: Payload) -> Result<Payload, String> {
        calls::call("sink", &payload).map_err(|error| error.message)
    }
}

export!(Relay);
