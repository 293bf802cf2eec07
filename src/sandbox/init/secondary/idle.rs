//! When a function is idle (`cwasi.idle`). Pure.

use cwasi_wire::control::FunctionLaunch;

/// The idle timer of a function.
#[derive(Debug)]
pub(super) struct IdleTimer {
    /// `None` for functions without `cwasi.idle`.
    timeout_ns: Option<u64>,
    /// Time of the last request, or of the announcement; `None` before that.
    last_request: Option<u64>,
}

impl IdleTimer {
    pub fn of(launch: &FunctionLaunch) -> Self {
        let timeout_ns = launch.idle_ms.map(|ms| ms.saturating_mul(1_000_000));
        Self { timeout_ns, last_request: None }
    }

    pub const fn is_enabled(&self) -> bool {
        self.timeout_ns.is_some()
    }

    /// Callers can call from now on.
    pub const fn start(&mut self, now: u64) {
        self.last_request = Some(now);
    }

    /// A request was read.
    pub const fn restart(&mut self, now: u64) {
        if self.last_request.is_some() {
            self.last_request = Some(now);
        }
    }

    /// When the function is idle, if no request comes before.
    pub fn expires_at(&self) -> Option<u64> {
        Some(self.last_request?.saturating_add(self.timeout_ns?))
    }
}
