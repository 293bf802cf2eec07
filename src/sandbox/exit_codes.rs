//! With which codes the processes of a container end when it is the runtime that ends them.

/// A builder that could not answer its shim.
pub const UNANSWERED: i32 = 120;
pub const PANICKED: i32 = 121;
/// The function cannot be started.
pub const START_FAILED: i32 = 125;
/// The guest trapped: what a shell reports for abort.
pub const TRAPPED: i32 = 134;
