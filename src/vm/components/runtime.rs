//! The tokio runtime on which components run: of this thread alone, made with the first instance. Runs in a worker.
//!
//! wasmtime-wasi would otherwise start a runtime with a thread for each CPU. The builder never makes one, because
//! threads and epoll descriptors do not survive a fork.
#![expect(unsafe_code, reason = "lends the host for the time of a call")]

use std::cell::OnceCell;

use tokio::runtime::{Builder, Handle, Runtime};

use cwasi_host_functions::Host;
use cwasi_vm::VmError;

use super::lent_host::LentHost;

thread_local! {
    static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
}

/// Most turns in which tasks that were told to end do so.
const TURNS_MAX: usize = 64;

/// Ends what an instance has left on the runtime when it is dropped, after the instance: HTTP connections, whose tasks
/// would otherwise end with the next request only.
#[derive(Debug)]
pub(super) struct EndedTasks;

impl Drop for EndedTasks {
    fn drop(&mut self) {
        RUNTIME.with(|cell| {
            // A task of the runtime cannot wait for others; these end with the next request.
            if Handle::try_current().is_ok() {
                return;
            }
            let Some(runtime) = cell.get() else { return };
            let is_idle = || runtime.metrics().num_alive_tasks() == 0;
            if is_idle() {
                return;
            }
            runtime.block_on(async {
                for _ in 0..TURNS_MAX {
                    if is_idle() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            });
        });
    }
}

/// Runs `run` to its end on this thread's runtime, and lends it `host`. What it lends it on to gives it back.
///
/// # Errors
/// When there are no descriptors for a runtime.
pub(super) fn lend<T>(
    host: &mut Host,
    run: impl AsyncFnOnce(&mut LentHost) -> T,
) -> Result<T, VmError> {
    let mut lent = LentHost::default();
    // SAFETY:
    // - taken back below, whatever `run` returns; a panic ends the worker.
    unsafe { lent.lend(host) };
    let ended = block_on(run(&mut lent));
    lent.take_back();
    ended
}

/// Runs `future` to its end on this thread's runtime.
///
/// # Errors
/// When there are no descriptors for a runtime.
fn block_on<F: Future>(future: F) -> Result<F::Output, VmError> {
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
