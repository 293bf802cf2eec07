//! Log lines through the crate [`log`]: they reach the function's stderr with level and function name.
//!
//! ```
//! cwasi::log::init();
//! cwasi::log::info!("{} frames", 25);
//! ```

pub use ::log::{Level, LevelFilter, debug, error, info, trace, warn};

use ::log::{Log, Metadata, Record};
use cwasi_abi::log_level;

use crate::imports;

/// Environment variable that names the least important level that is logged (`error` … `trace`, `off`).
pub const LEVEL_VARIABLE: &str = "CWASI_LOG";

/// Sends the program's log lines to the host, from `info` upwards or as the variable `CWASI_LOG` says.
///
/// Call it first in the handler or in `main`; further calls change nothing.
pub fn init() {
    let level = std::env::var(LEVEL_VARIABLE).ok().and_then(|text| text.parse().ok());
    init_with(level.unwrap_or(LevelFilter::Info));
}

/// [`init`] with a level of the program's own.
pub fn init_with(level: LevelFilter) {
    // Fails when a logger is there already: this one, or one that the program prefers.
    if ::log::set_logger(&HostLog).is_ok() {
        ::log::set_max_level(level);
    }
}

struct HostLog;

impl Log for HostLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        imports::log(number(record.level()), &record.args().to_string());
    }

    fn flush(&self) {}
}

const fn number(level: Level) -> u32 {
    match level {
        Level::Error => log_level::ERROR,
        Level::Warn => log_level::WARN,
        Level::Info => log_level::INFO,
        Level::Debug => log_level::DEBUG,
        Level::Trace => log_level::TRACE,
    }
}
