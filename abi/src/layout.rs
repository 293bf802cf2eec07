//! Structures that host functions write into linear memory: little-endian `u32` fields without padding.

/// What `request_dispatcher` writes to `outcome_out`.
///
/// Written for errors too whenever the arguments themselves were valid: then `handle` holds the error's
/// message (UTF-8, `length` bytes) and `status` repeats the errno. `handle` is 0 when there is nothing to
/// read. A handle is freed by `response_read`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Outcome {
    /// Key for `response_read`; 0 = nothing to read.
    pub handle: u32,
    /// Bytes behind `handle`.
    pub length: u32,
    /// 0 = answered, otherwise the errno of the call.
    pub status: u32,
    /// Zero.
    pub reserved: u32,
}

impl Outcome {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// As it lies in linear memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        words([self.handle, self.length, self.status, self.reserved])
    }
}

/// What `dispatch_start` reads at `options_ptr`: how a call is made, besides target and payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallOptions {
    /// Where the join key lies (UTF-8): calls of one run with the same key and callee are handled together.
    pub join_key_ptr: u32,
    /// Its length in bytes, at most [`JOIN_KEY_MAX`](crate::JOIN_KEY_MAX); 0 = the call is handled alone.
    pub join_key_len: u32,
    /// How many parts are handled together; 0 = the callee's annotation says.
    pub parts: u32,
    /// The place of this call among the parts, from 0.
    pub part: u32,
}

impl CallOptions {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// From the bytes that the guest wrote.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            join_key_ptr: u32::from_le_bytes([a, b, c, d]),
            join_key_len: u32::from_le_bytes([e, f, g, h]),
            parts: u32::from_le_bytes([i, j, k, l]),
            part: u32::from_le_bytes([m, n, o, p]),
        }
    }
}

/// What `dispatch_wait` writes to `ready_out`: which call ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ready {
    /// Its place among the handles that were waited for.
    pub index: u32,
    /// As of `request_dispatcher`.
    pub outcome: Outcome,
}

impl Ready {
    /// Size in bytes.
    pub const SIZE: usize = 20;

    /// As it lies in linear memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..].copy_from_slice(&self.outcome.to_bytes());
        bytes
    }
}

/// What `cwasi_handle` writes to `response_out`: where the response (or the error's message) lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ResponseRef {
    /// Offset of the first byte.
    pub ptr: u32,
    /// Length in bytes.
    pub len: u32,
}

impl ResponseRef {
    /// Size in bytes.
    pub const SIZE: usize = 8;
    /// Alignment in bytes.
    pub const ALIGN: usize = 4;

    /// From the bytes that the guest wrote.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::SIZE]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self { ptr: u32::from_le_bytes([a, b, c, d]), len: u32::from_le_bytes([e, f, g, h]) }
    }
}

/// What `region_info` writes: how linear memory lies in the host's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RegionInfo {
    /// Alignment and granularity of regions in bytes; 0 = no regions on this host.
    pub page_len: u32,
    /// Length of a huge page in bytes.
    pub huge_page_len: u32,
    /// Host address of offset 0 modulo `huge_page_len`: huge pages begin at offsets that add up with it to a
    /// multiple of `huge_page_len`.
    pub phase: u32,
    /// Zero.
    pub reserved: u32,
}

impl RegionInfo {
    /// Size in bytes.
    pub const SIZE: usize = 16;

    /// As it lies in linear memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        words([self.page_len, self.huge_page_len, self.phase, self.reserved])
    }
}

pub(crate) fn words(fields: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (chunk, field) in bytes.chunks_exact_mut(4).zip(fields) {
        chunk.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

const _: () = assert!(size_of::<RegionInfo>() == RegionInfo::SIZE);
const _: () = assert!(size_of::<Outcome>() == Outcome::SIZE);
const _: () = assert!(size_of::<CallOptions>() == CallOptions::SIZE);
const _: () = assert!(size_of::<Ready>() == Ready::SIZE);
const _: () = assert!(size_of::<ResponseRef>() == ResponseRef::SIZE);
const _: () = assert!(align_of::<ResponseRef>() == ResponseRef::ALIGN);
