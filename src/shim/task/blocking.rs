//! Work of tasks on threads that may block, and work that ends with its task's creation.

use tokio::sync::watch;

use super::error::TaskError;

/// `work`, dropped when the creation of task `id` is cancelled: with a plan goes the compiler that it waits for.
pub async fn unless_cancelled<T>(
    id: &str,
    mut cancelled: watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Result<T, TaskError> {
    tokio::select! {
        done = work => Ok(done),
        // The sender lives in the table for as long as the task is being created.
        _ = cancelled.wait_for(|cancelled| *cancelled) => {
            Err(TaskError::Cancelled { id: id.to_owned() })
        }
    }
}

/// Runs `work` on a thread that may block.
pub async fn blocking<T: Send + 'static>(
    id: &str,
    work: impl FnOnce() -> Result<T, TaskError> + Send + 'static,
) -> Result<T, TaskError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        let (id, source) = (id.to_owned(), error.into());
        Err(TaskError::System { id, operation: "a thread", source })
    })
}
