//! Memory for payloads that are being received over direct connections: a bound over all of them, in one direction.
//! Runs in shims, and in processes of the host that call functions.
//!
//! While nobody reads a payload its sender waits, and takes the connection for broken after some seconds. So a payload
//! waits for room for a moment only.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// Most bytes at a time. One payload may have as many.
pub(super) const BYTES_MAX: u64 = 1 << 30;
/// Larger payloads need room. Smaller ones are bounded by the number of connections.
const COUNTED_FROM: u64 = 1 << 20;
/// Bytes of one permit.
const PERMIT: u64 = 1 << 20;
/// Longest wait for room. TCP gives up a connection of which the other side reads nothing for 4 s.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Room for payloads.
#[derive(Debug)]
pub(super) struct PayloadRoom {
    permits: Semaphore,
    wait_max: Duration,
}

/// A payload's part of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    _permit: Option<SemaphorePermit<'a>>,
}

impl Default for PayloadRoom {
    fn default() -> Self {
        Self { permits: Semaphore::new(permits(BYTES_MAX) as usize), wait_max: WAIT_MAX }
    }
}

fn permits(bytes: u64) -> u32 {
    u32::try_from(bytes.min(BYTES_MAX).div_ceil(PERMIT)).unwrap_or(u32::MAX)
}

impl PayloadRoom {
    /// Room for a payload of so many bytes; `None` when others have it for longer than this one can wait.
    pub(super) async fn take(&self, bytes: u64) -> Option<Taken<'_>> {
        if bytes <= COUNTED_FROM {
            return Some(Taken { _permit: None });
        }
        let waiting = timeout(self.wait_max, self.permits.acquire_many(permits(bytes)));
        Some(Taken { _permit: waiting.await.ok()?.ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_payload_waits_for_a_moment_and_small_ones_do_not() {
        let room = PayloadRoom { wait_max: Duration::from_millis(50), ..PayloadRoom::default() };
        let most = room.take(BYTES_MAX).await.unwrap();
        assert!(room.take(COUNTED_FROM).await.is_some());
        assert!(room.take(COUNTED_FROM + 1).await.is_none());
        let waits = async { tokio::join!(room.take(BYTES_MAX), async { drop(most) }).0.is_some() };
        assert!(waits.await);
    }

    #[tokio::test]
    async fn one_payload_may_be_larger_than_the_room() {
        let room = PayloadRoom::default();
        assert!(room.take(u64::MAX).await.is_some());
    }
}
