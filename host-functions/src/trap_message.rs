//! `trap_message(ptr, len) -> errno`. Runs in a worker.

use cwasi_abi::{Errno, TRAP_MESSAGE_MAX};

use crate::text::lossy_text;
use crate::{GuestMemory, GuestPtr, Host};

/// Keeps a text that explains the trap which follows, such as a panic's message; the caller reads it with
/// the trap. Longer ones than [`TRAP_MESSAGE_MAX`] are cut, the last one counts.
///
/// # Errors
/// [`Errno::BadPointer`].
pub fn trap_message(
    host: &mut Host,
    memory: &impl GuestMemory,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    let bytes = memory.slice(ptr, len)?;
    host.trap_message = Some(lossy_text(bytes, TRAP_MESSAGE_MAX));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::fake::{FakeMemory, host};

    #[test]
    fn the_last_message_is_taken_once_and_not_by_the_next_invocation() {
        let mut host = host();
        let mut memory = FakeMemory::of(64);
        memory.write(GuestPtr(8), b"oops, again").unwrap();
        assert_eq!(trap_message(&mut host, &memory, GuestPtr(8), 4), Ok(()));
        assert_eq!(trap_message(&mut host, &memory, GuestPtr(14), 5), Ok(()));
        assert_eq!(trap_message(&mut host, &memory, GuestPtr(60), 5), Err(Errno::BadPointer));
        assert_eq!(host.take_trap_message().as_deref(), Some("again"));
        assert_eq!(host.take_trap_message(), None);
        trap_message(&mut host, &memory, GuestPtr(8), 4).unwrap();
        host.begin(Context::default());
        assert_eq!(host.take_trap_message(), None);
    }
}
