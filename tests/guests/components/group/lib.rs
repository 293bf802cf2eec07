//! A `cwasi:function/group-handler` that lists the parts of a group.
#![expect(missing_docs, reason = "generated")]

use cwasi::calls::types::Payload;
use exports::cwasi::function::group_handler::{Guest, Part};

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/group-function",
    generate_all,
});

struct Group;

impl Guest for Group {
    fn handle(expected: u32, parts: Vec<Part>) -> Result<Payload, String> {
        let mut said = format!("{} of {expected}:", parts.len());
        for part in parts {
            let bytes = part.payload.read(0, part.payload.length());
            said += &format!(" {}={}", part.number, String::from_utf8_lossy(&bytes));
        }
        Ok(Payload::new(said.as_bytes()))
    }
}

export!(Group);
