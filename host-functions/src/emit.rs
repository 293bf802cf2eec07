//! `emit(target_ptr, target_len, payload_ptr, payload_len, outcome_out) -> errno`. Runs in a worker.

use cwasi_abi::{Errno, Outcome};

use crate::request_dispatcher::{arguments, checked, full, keep, write_outcome};
use crate::{GuestMemory, GuestPtr, Host};

/// Stores a message for a function without waiting for its handler. After an error, the text is kept for
/// [`response_read`](crate::response_read()).
///
/// # Errors
/// As [`request_dispatcher`](crate::request_dispatcher()).
pub fn emit(
    host: &mut Host,
    memory: &mut impl GuestMemory,
    target: (GuestPtr, u32),
    payload: (GuestPtr, u32),
    outcome_out: GuestPtr,
) -> Result<(), Errno> {
    let (name, bytes) = arguments(memory, target, payload, outcome_out)?;
    let outcome = match full(host) {
        Some(outcome) => outcome,
        None => {
            let kept =
                checked(host, &name, bytes).and_then(|target| host.emit_checked(target, bytes));
            match kept {
                Ok(()) => Outcome::default(),
                Err(error) => keep(host, Err(error)),
            }
        }
    };
    write_outcome(memory, outcome_out, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::fake::{FakeMemory, host};

    #[test]
    fn a_kept_message_leaves_no_handle_and_a_failure_leaves_its_text() {
        let mut host = host();
        host.begin(Context::default());
        let mut memory = FakeMemory::of(256);
        memory.write(GuestPtr(64), b"reverse").unwrap();
        memory.write(GuestPtr(128), b"nobody").unwrap();
        let payload = (GuestPtr(192), 3);
        let sent = emit(&mut host, &mut memory, (GuestPtr(64), 7), payload, GuestPtr(0));
        assert_eq!(sent, Ok(()));
        assert_eq!(memory.bytes()[..16], [0; 16]);
        let sent = emit(&mut host, &mut memory, (GuestPtr(128), 6), payload, GuestPtr(0));
        assert_eq!(sent, Err(Errno::NoSuchFunction));
        assert_ne!(memory.bytes()[..4], [0; 4], "a handle for the text");
        let outside = (GuestPtr(250), 7);
        let sent = emit(&mut host, &mut memory, outside, payload, GuestPtr(0));
        assert_eq!(sent, Err(Errno::BadPointer));
    }
}
