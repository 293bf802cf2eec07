//! containerd's flags and variables for launcher and daemon.

use containerd_shim::Flags;

/// Variable with the address for events.
pub const EVENTS_VARIABLE: &str = "TTRPC_ADDRESS";

/// The flags of containerd.
#[derive(Clone, Debug)]
pub struct ShimArguments {
    pub namespace: String,
    /// Container id; for the daemon the id of its first container.
    pub id: String,
    pub address: String,
    pub events_address: String,
    /// True when containerd runs with `--log-level debug`.
    pub debug: bool,
}

impl ShimArguments {
    /// Parses flags; `None` without a namespace or an id.
    #[must_use]
    pub fn of(flags: &Flags) -> Option<Self> {
        if flags.namespace.is_empty() || flags.id.is_empty() {
            return None;
        }
        Some(Self {
            namespace: flags.namespace.clone(),
            id: flags.id.clone(),
            address: flags.address.clone(),
            events_address: std::env::var(EVENTS_VARIABLE)
                .unwrap_or_else(|_| format!("{}.ttrpc", flags.address)),
            debug: flags.debug,
        })
    }
}
