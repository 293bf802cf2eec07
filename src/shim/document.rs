//! Requests that are longer than a message of the control socket: a sealed memfd carries them. A pod of a namespace with
//! hundreds of Services has an environment of that length.

use std::os::fd::OwnedFd;

use cwasi_sys::segment::{Segment, SegmentError};
use cwasi_wire::control::{self, Attached, CONTROL_MESSAGE_MAX, DOCUMENT_MAX};

/// A request cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(
        "the container's arguments, environment and mounts take {length} bytes, more than {DOCUMENT_MAX}: pass what is \
         large in a file"
    )]
    TooLarge {
        /// Length in bytes.
        length: usize,
    },
    #[error("the container's arguments, environment and mounts cannot be copied: {0}")]
    Copy(#[from] SegmentError),
    #[error("the descriptor of the request cannot be copied: {0}")]
    Descriptor(#[from] std::io::Error),
}

/// A request as it is sent.
#[derive(Debug)]
pub struct Outgoing {
    pub message: Vec<u8>,
    /// Goes before the other descriptors.
    pub document: Option<OwnedFd>,
}

impl Outgoing {
    /// Keeps a request in the message if it fits.
    ///
    /// # Errors
    /// When it is too large, or there is no memory for its copy.
    pub fn new(request: Vec<u8>) -> Result<Self, DocumentError> {
        if request.len() <= CONTROL_MESSAGE_MAX {
            return Ok(Self { message: request, document: None });
        }
        if request.len() > DOCUMENT_MAX {
            return Err(DocumentError::TooLarge { length: request.len() });
        }
        let document = Segment::copy_of(&request)?.as_fd().try_clone_to_owned()?;
        let message = control::encode(&Attached { document: request.len() as u64 });
        Ok(Self { message, document: Some(document) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_travels_in_the_message_or_beside_it_or_is_refused() {
        let short = Outgoing::new(vec![b'x'; CONTROL_MESSAGE_MAX]).unwrap();
        assert!(short.document.is_none() && short.message.len() == CONTROL_MESSAGE_MAX);
        let long = vec![b'x'; CONTROL_MESSAGE_MAX + 1];
        let Outgoing { message, document } = Outgoing::new(long.clone()).unwrap();
        let Attached { document: length } = control::decode(&message).unwrap();
        let sent = Segment::accept(document.unwrap(), length).unwrap();
        assert_eq!(sent.to_vec().unwrap(), long);
        let refused = Outgoing::new(vec![b'x'; DOCUMENT_MAX + 1]).unwrap_err();
        assert!(refused.to_string().contains("pass what is large in a file"), "{refused}");
    }
}
