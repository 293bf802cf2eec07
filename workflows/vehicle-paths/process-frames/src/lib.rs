//! The function `process-frames`, a secondary: labels a chunk of pictures, or anonymizes one that is labelled. The work
//! is [`vision::functions::process_frames`]; the background comes and goes with the payload.

use cwasi_runtime::Cwasi;
use vision::functions::{FunctionError, process_frames};

#[cwasi::handler]
fn answer(payload: &[u8]) -> Result<cwasi::Region, FunctionError> {
    process_frames(payload, &Cwasi)
}
