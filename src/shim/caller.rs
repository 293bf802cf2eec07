//! Who asks for a shim: what containerd passes to launcher and daemon by flags and variables.

use containerd_shim::Flags;

/// Variable in which containerd passes the address that takes events.
pub const EVENTS_VARIABLE: &str = "TTRPC_ADDRESS";

/// Who asks, as containerd's flags say.
#[derive(Clone, Debug)]
pub struct Caller {
    /// containerd namespace.
    pub namespace: String,
    /// Container id; for the daemon that of the first member.
    pub id: String,
    /// containerd's gRPC address.
    pub address: String,
    /// Where events go.
    pub events_address: String,
    /// True when containerd runs with `--log-level debug`.
    pub debug: bool,
}

impl Caller {
    /// Who these flags name; `None` without a namespace or an id.
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
