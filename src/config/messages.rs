//! `[messages]` of the node's configuration: limits of one-way messages that wait in Redis. Runs in the shim daemon.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::compile;

/// Least configurable quota: a sender's half of it has room for the largest message.
const WAITING_MIN: u64 = 4 << 20;
/// Longest configurable expiry in days.
const KEPT_DAYS_MAX: u64 = 3650;
/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Limits of the messages that functions of this node send.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct MessagesConfig {
    /// Bytes of a namespace's messages that no handler has handled yet; one sender has half of it.
    #[serde(deserialize_with = "compile::size")]
    pub waiting_max: u64,
    /// Functions without an instance that a namespace's messages may wait for.
    pub functions_max: usize,
    /// Days without a new message and without an instance after which a function's messages expire.
    pub kept_days: u64,
}

impl Default for MessagesConfig {
    fn default() -> Self {
        Self { waiting_max: 64 << 20, functions_max: 1000, kept_days: 7 }
    }
}

impl MessagesConfig {
    /// See `kept_days`.
    #[must_use]
    pub const fn kept(&self) -> Duration {
        Duration::from_secs(self.kept_days.saturating_mul(DAY))
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.waiting_max < WAITING_MIN {
            return Err(format!("messages.waiting_max must be {WAITING_MIN} bytes or more"));
        }
        if self.functions_max == 0 {
            return Err("messages.functions_max must be larger than zero".to_owned());
        }
        if !(1..=KEPT_DAYS_MAX).contains(&self.kept_days) {
            return Err(format!("messages.kept_days must be from 1 to {KEPT_DAYS_MAX}"));
        }
        Ok(())
    }
}
