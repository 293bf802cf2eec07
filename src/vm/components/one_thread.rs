//! What wasmtime and wasmtime-wasi want to be `Send`, although a worker has one thread. Runs in a worker.
#![expect(unsafe_code, reason = "promises what holds for one thread")]

use std::pin::Pin;
use std::task::{Context, Poll};

/// A value that never leaves its thread.
#[derive(Clone, Debug, Default)]
pub(super) struct OneThread<T>(pub(super) T);

// SAFETY:
// - a worker has one thread, and its runtime runs every future on it: the value never reaches another one.
unsafe impl<T> Send for OneThread<T> {}
// SAFETY:
// - as above.
unsafe impl<T> Sync for OneThread<T> {}

impl<F: Future + Unpin> Future for OneThread<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}
