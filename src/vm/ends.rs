//! How an invocation of a guest ends. Runs in builder and workers.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// It returned (0) or called `proc_exit`.
    Exited(u32),
    Trapped(Trap),
}

/// The reason why an export did not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestStop {
    /// The guest called `proc_exit`.
    Exited(u32),
    Trapped(Trap),
}

/// A trap: its reason and export. The engine keeps no stack of native code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trap in `{export}`: {reason}")]
pub struct Trap {
    /// Export that the host had called.
    pub export: String,
    /// The engine's words, e.g. `out of bounds memory access`.
    pub reason: String,
}
