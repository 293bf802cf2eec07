//! A `cwasi:function/payload-handler` that answers with the length and the sum of a payload's bytes. A payload that
//! begins with `!stream` is read as a stream, in pieces; `!copy` is returned as a payload of the component's own.
#![expect(missing_docs, reason = "generated")]

use cwasi::calls::streams::stream_of;
use cwasi::calls::types::Payload;
use exports::cwasi::function::payload_handler::Guest;
use wasi::io::streams::StreamError;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    inline: "
        package tests:reader;

        world reader {
            include cwasi:function/payload-function@0.1.0;
            import cwasi:calls/streams@0.1.0;
        }
    ",
    generate_all,
});

/// Most bytes of one read of a stream.
const PIECE: u64 = 1 << 20;

struct Reader;

impl Guest for Reader {
    fn handle(payload: Payload) -> Result<Payload, String> {
        let all = || payload.read(0, payload.length());
        let said = match payload.read(0, 8) {
            first if first.starts_with(b"!stream") => streamed(&payload)?,
            first if first.starts_with(b"!copy") => return Ok(Payload::new(&all())),
            _ => format!("{} {}", payload.length(), sum(&all())),
        };
        Ok(Payload::new(said.as_bytes()))
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Length, sum, and the number of pieces.
fn streamed(payload: &Payload) -> Result<String, String> {
    let stream = stream_of(payload);
    let (mut length, mut total, mut pieces) = (0, 0, 0);
    loop {
        match stream.blocking_read(PIECE) {
            Ok(piece) => {
                length += piece.len();
                total += sum(&piece);
                pieces += 1;
            }
            Err(StreamError::Closed) => return Ok(format!("{length} {total} in {pieces}")),
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}

export!(Reader);
