//! Guest-visible error codes. Numbers never change meaning; new ones are added at the end.

/// What a host function returns; the numbers are the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Errno {
    /// Done.
    Ok = 0,
    /// A pointer or length lies outside linear memory.
    BadPointer = 1,
    /// An argument has a value that is never valid (not UTF-8, empty target, unknown key, bad level).
    InvalidArgument = 2,
    /// No function of that name can be reached.
    NoSuchFunction = 3,
    /// Policy forbids the call.
    Refused = 4,
    /// The deadline passed.
    Timeout = 5,
    /// The callee's workers and queue are full.
    Overloaded = 6,
    /// The callee's code trapped, overflowed its stack or crashed; the message says how.
    Trapped = 7,
    /// The callee answered with an error or a non-zero exit code; the message is the callee's.
    Failed = 8,
    /// The payload or the response is larger than the limit.
    PayloadTooLarge = 9,
    /// The callee could not be reached; the call was not accepted, a retry is safe.
    Unreachable = 10,
    /// The callee was killed, or ended, after it accepted the call; whether it ran is unknown.
    Broken = 11,
    /// No response is kept under that handle.
    BadHandle = 12,
    /// This host does not offer what was asked for.
    NotAvailable = 13,
    /// The caller's buffer is too small; the needed length was written.
    BufferTooSmall = 14,
    /// A fault of the host; its log says more.
    Internal = 15,
    /// Too many responses were left unread, or regions shared; nothing was done.
    TooManyHandles = 16,
}

impl Errno {
    /// Every code, in order of its number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::BadPointer,
        Self::InvalidArgument,
        Self::NoSuchFunction,
        Self::Refused,
        Self::Timeout,
        Self::Overloaded,
        Self::Trapped,
        Self::Failed,
        Self::PayloadTooLarge,
        Self::Unreachable,
        Self::Broken,
        Self::BadHandle,
        Self::NotAvailable,
        Self::BufferTooSmall,
        Self::Internal,
        Self::TooManyHandles,
    ];

    /// The number that a host function returns.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The code behind a number; `None` for numbers of a later ABI.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        usize::try_from(code).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// Short lower-case name, as logs and metrics print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::BadPointer => "bad pointer",
            Self::InvalidArgument => "invalid argument",
            Self::NoSuchFunction => "no such function",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Trapped => "trapped",
            Self::Failed => "failed",
            Self::PayloadTooLarge => "payload too large",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::BadHandle => "bad handle",
            Self::NotAvailable => "not available",
            Self::BufferTooSmall => "buffer too small",
            Self::Internal => "internal",
            Self::TooManyHandles => "too many handles",
        }
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Errno;

    #[test]
    fn numbers_and_codes_agree() {
        for (index, errno) in Errno::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(errno.code()), Ok(index));
            assert_eq!(Errno::from_code(errno.code()), Some(errno));
        }
        assert_eq!(Errno::from_code(-1), None);
        assert_eq!(Errno::from_code(17), None);
    }
}
