//! The amount of measuring: all cases, or a selection for a few minutes.

use std::time::Duration;

/// How thorough a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// All cases, with many repeats.
    Full,
    /// The cases that bars and tables need, in less than 5 minutes.
    Quick,
    /// One round of one call: shows that a case works, says nothing about time.
    Smoke,
}

/// Rounds in which the sides take turns, and calls in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Rounds that count; one more comes before them, to warm up.
    pub rounds: usize,
    /// Calls of one side in a round.
    pub block: usize,
}

/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;

impl Effort {
    /// Turns for payloads of this length in bytes.
    #[must_use]
    pub const fn turns(self, size: usize) -> Turns {
        let (rounds, block) = match (self, size) {
            (Self::Smoke, _) => (1, 1),
            (Self::Full, ..=65_536) => (40, 100),
            (Self::Quick, ..=65_536) => (15, 60),
            (Self::Full, ..=4_194_304) => (30, 20),
            (Self::Quick, ..=4_194_304) => (12, 8),
            (Self::Full, _) => (25, 2),
            (Self::Quick, _) => (7, 1),
        };
        Turns { rounds, block }
    }

    /// How long one load of callers lasts.
    #[must_use]
    pub const fn load(self) -> Duration {
        match self {
            Self::Full => Duration::from_secs(60),
            Self::Quick => Duration::from_secs(2),
            Self::Smoke => Duration::from_millis(100),
        }
    }

    /// This many in a full run, that many in a quick one, one in a smoke test.
    #[must_use]
    pub const fn pick(self, full: usize, quick: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => 1,
        }
    }
}

/// `64B`, `64KiB`, `2MiB`.
#[must_use]
pub fn size_name(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB => format!("{}MiB", bytes / MIB),
        _ if bytes >= 1024 => format!("{}KiB", bytes / 1024),
        _ => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_the_bars_name_them() {
        assert_eq!(
            [64, 65_536, 2 * MIB, 100 * MIB].map(size_name),
            ["64B", "64KiB", "2MiB", "100MiB"]
        );
    }
}
