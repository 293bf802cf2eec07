//! The function `reconstruct-paths`, a secondary: labels of a whole video in, vehicles' paths and
//! their picture out. The work is [`vision::functions::reconstruct_paths`].

use vision::functions::{FunctionError, reconstruct_paths};

#[cwasi::handler]
fn answer(payload: &[u8]) -> Result<Vec<u8>, FunctionError> {
    reconstruct_paths(payload)
}
