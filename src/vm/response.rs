//! A callee's response, for the host functions. Runs in workers.

use cwasi_host_functions::{Response, ResponseLost, SharedBytes};

use cwasi_modes::Payload;
use cwasi_sys::segment::Segment;

/// A response in its received form: its segment is mapped into the guest's memory, or copied once.
#[derive(Debug)]
pub struct ResponsePayload(pub Payload);

impl ResponsePayload {
    /// A response in shared memory.
    #[must_use]
    pub const fn of(segment: Segment) -> Self {
        Self(Payload::Segment(segment))
    }
}

impl Response for ResponsePayload {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn copy_to(&self, target: &mut [u8]) -> Result<(), ResponseLost> {
        self.0.copy_to(target).map_err(|error| ResponseLost { reason: error.to_string() })
    }

    fn shared(&self) -> Option<SharedBytes<'_>> {
        match &self.0 {
            Payload::Segment(segment) => {
                Some(SharedBytes { fd: segment.as_fd(), token: segment.token() })
            }
            Payload::Inline(_) => None,
        }
    }
}
