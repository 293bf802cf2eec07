//! The tokio runtime on which components run: of this thread alone, made with the first instance. Runs in a worker.
//!
//! wasmtime-wasi would otherwise start a runtime with a thread for each CPU. The builder never makes one, because
//! threads and epoll descriptors do not survive a fork.

use std::cell::OnceCell;

use tokio::runtime::{Builder, Runtime};

use cwasi_vm::VmError;

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

/// Runs `future` to its end on this thread's runtime.
///
/// # Errors
/// When there are no descriptors for a runtime.
pub(super) fn block_on<F: Future>(future: F) -> Result<F::Output, VmError> {
    RUNTIME.with(|cell| {
        let runtime = match cell.get() {
            Some(runtime) => runtime,
            None => {
                let made = Builder::new_current_thread().enable_io().enable_time().build();
                let made =
                    made.map_err(|_error| VmError::Setup { what: "runtime of components" })?;
                cell.get_or_init(|| made)
            }
        };
        Ok(runtime.block_on(future))
    })
}
