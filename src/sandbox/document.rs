//! Requests that are longer than a message of the control socket, which come in a sealed memfd. Runs in the zygote, and in
//! an init that waits for its code.

use std::os::fd::OwnedFd;

use serde::de::DeserializeOwned;

use cwasi_sys::segment::{Segment, SegmentError};
use cwasi_wire::control::{self, Attached, ControlCodecError, DOCUMENT_MAX};

/// Longest message that may stand for a document.
const ATTACHED_MAX: usize = 64;

/// A request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(
        "the request's document of {length} bytes did not come with it, or is longer than {DOCUMENT_MAX} bytes"
    )]
    Missing { length: u64 },
    #[error("the request's document cannot be read: {0}")]
    Segment(#[from] SegmentError),
    #[error(transparent)]
    Codec(#[from] ControlCodecError),
}

/// The request that a message is, or that is in the descriptor with the number `at`, which is taken away.
///
/// # Errors
/// When there is none.
pub fn read<T: DeserializeOwned>(
    message: &[u8],
    descriptors: &mut Vec<OwnedFd>,
    at: usize,
) -> Result<T, DocumentError> {
    let attached = if message.len() > ATTACHED_MAX { None } else { control::decode(message).ok() };
    let Some(Attached { document: length }) = attached else {
        return Ok(control::decode(message)?);
    };
    if descriptors.len() <= at || length > DOCUMENT_MAX as u64 {
        return Err(DocumentError::Missing { length });
    }
    let document = Segment::accept(descriptors.remove(at), length)?;
    Ok(control::decode(&document.to_vec()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cwasi_wire::control::ResolveReply;

    #[test]
    fn a_request_is_in_the_message_or_beside_it() {
        let request = ResolveReply::NoOther { instances: 7 };
        let bytes = control::encode(&request);
        let mut none = Vec::new();
        assert_eq!(read::<ResolveReply>(&bytes, &mut none, 0).unwrap(), request);
        let message = control::encode(&Attached { document: bytes.len() as u64 });
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let document = Segment::copy_of(&bytes).unwrap().as_fd().try_clone_to_owned().unwrap();
        let mut descriptors = vec![file(), document];
        assert_eq!(read::<ResolveReply>(&message, &mut descriptors, 1).unwrap(), request);
        assert_eq!(descriptors.len(), 1);
        // Without it, or with something else in its place.
        for mut descriptors in [vec![], vec![file()]] {
            assert!(read::<ResolveReply>(&message, &mut descriptors, 0).is_err());
        }
        let long = control::encode(&Attached { document: u64::MAX });
        assert!(read::<ResolveReply>(&long, &mut vec![file()], 0).is_err());
    }
}
