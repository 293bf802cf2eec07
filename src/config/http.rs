//! Settings of HTTP: the table `[http]` of the node's configuration, and the annotations that say the same of one
//! function. Runs in launcher, shim daemon and gateway.

use std::ops::RangeInclusive;
use std::time::Duration;

use cwasi_abi::METADATA_MAX;
use serde::{Deserialize, Serialize};

use super::{compile, values};

/// Default bound of a head in bytes, and the largest one: a head travels in one envelope.
pub const MAX_HEAD_DEFAULT: u32 = METADATA_MAX as u32;
/// Smallest bound of a head in bytes.
const MAX_HEAD_MIN: u32 = 1024;
/// Default time in seconds that an idle connection is kept: longer than the 60 s of the usual proxies, so that none of
/// them sends a request into a connection that is being closed.
const IDLE_DEFAULT: u64 = 75;
/// Seconds that an idle connection may be kept.
const IDLE: RangeInclusive<u64> = 1..=3600;

/// Settings of a node's functions that take HTTP, and of its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Bytes of a head, of functions without `cwasi.http.max-head`.
    #[serde(deserialize_with = "compile::size")]
    pub max_head: u64,
    /// Seconds that an idle connection is kept, on ports without `cwasi.http.idle-timeout` and by the gateway.
    pub idle_seconds: u64,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { max_head: u64::from(MAX_HEAD_DEFAULT), idle_seconds: IDLE_DEFAULT }
    }
}

impl HttpConfig {
    /// See `max_head`.
    #[must_use]
    pub fn max_head(&self) -> u32 {
        u32::try_from(self.max_head).unwrap_or(MAX_HEAD_DEFAULT)
    }

    /// See `idle_seconds`.
    #[must_use]
    pub const fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_seconds)
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if !(u64::from(MAX_HEAD_MIN)..=u64::from(MAX_HEAD_DEFAULT)).contains(&self.max_head) {
            return Err(format!(
                "http.max_head must be from {MAX_HEAD_MIN} to {MAX_HEAD_DEFAULT} bytes"
            ));
        }
        check_idle(self.idle_seconds).map_err(|problem| format!("http.idle_seconds {problem}"))
    }
}

/// Checks how long an idle connection is kept.
///
/// # Errors
/// The bounds.
pub fn check_idle(seconds: u64) -> Result<(), String> {
    if IDLE.contains(&seconds) {
        return Ok(());
    }
    Err(format!("must be from {} to {} seconds", IDLE.start(), IDLE.end()))
}

/// The value of `cwasi.http.max-head`.
pub(super) fn max_head(text: &str) -> Result<u32, String> {
    let size = values::size(text, u64::from(MAX_HEAD_DEFAULT))?;
    match u32::try_from(size) {
        Ok(size) if size >= MAX_HEAD_MIN => Ok(size),
        _ => Err(format!("is smaller than the minimum of {MAX_HEAD_MIN} bytes")),
    }
}

/// The value of `cwasi.http.idle-timeout`.
pub(super) fn idle_timeout(text: &str) -> Result<Duration, String> {
    let idle = values::duration(text)?;
    check_idle(idle.as_secs())?;
    Ok(idle)
}
