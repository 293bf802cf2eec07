//! Frames: one `SOCK_SEQPACKET` message each, so boundaries and descriptors arrive together.
//!
//! ```text
//! offset  size  field
//!      0     1  version (1)
//!      1     1  kind
//!      2     1  flags: bit 0 = the payload is a segment that comes as a descriptor; bit 1 = it is leased, and its
//!                    token comes as another one; bit 2 = to one reader, who tells the owner when others get it
//!      3     1  zero
//!      4     4  envelope length, little-endian, at most ENVELOPE_MAX
//!      8     8  payload length, little-endian
//!     16     …  envelope (protobuf)
//!      …     …  payload, unless it is a segment
//! ```
//!
//! The header is fixed because the payload must not pass through the protobuf codec: it is copied once,
//! from the caller's memory into the socket.

use protobuf::Message;

use super::envelope::{Assignment, Hello, Request, Response, SharedConnection, Undelivered};

/// Version of the frame layout.
pub const FRAME_VERSION: u8 = 1;
/// Bytes of a frame header.
pub const HEADER_LEN: usize = 16;
/// Longest envelope in bytes: metadata of [`cwasi_abi::METADATA_MAX`] bytes, and everything else. Peers of the version
/// before take 8 KiB; they do not say how much metadata they read ([`super::metadata::EARLIER_MAX`]).
pub const ENVELOPE_MAX: usize = 80 * 1024;
/// Longest payload that travels inside a frame, in bytes; longer ones come as a segment.
pub const INLINE_MAX: usize = cwasi_abi::INLINE_MAX;
/// Longest frame in bytes.
pub const FRAME_MAX: usize = HEADER_LEN + ENVELOPE_MAX + INLINE_MAX;

const FLAG_SEGMENT: u8 = 1;
const FLAG_LEASED: u8 = 2;
const FLAG_ONE_READER: u8 = 4;
const FLAGS_LEASED: u8 = FLAG_SEGMENT | FLAG_LEASED;
const FLAGS_ONE_READER: u8 = FLAGS_LEASED | FLAG_ONE_READER;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// [`Hello`], once per connection.
    Hello = 1,
    /// [`Request`] and its payload.
    Request = 2,
    /// [`Response`] and its payload.
    Response = 3,
    /// [`Assignment`] and its payload.
    Assignment = 4,
    /// [`SharedConnection`], without a payload.
    SharedConnection = 6,
    /// [`Undelivered`] and its payload.
    Undelivered = 7,
}

/// An envelope that frames carry.
pub trait Enveloped: Message {
    /// The kind of frame it travels in.
    const KIND: FrameKind;
}

impl Enveloped for Hello {
    const KIND: FrameKind = FrameKind::Hello;
}
impl Enveloped for Request {
    const KIND: FrameKind = FrameKind::Request;
}
impl Enveloped for Response {
    const KIND: FrameKind = FrameKind::Response;
}
impl Enveloped for Assignment {
    const KIND: FrameKind = FrameKind::Assignment;
}
impl Enveloped for SharedConnection {
    const KIND: FrameKind = FrameKind::SharedConnection;
}
impl Enveloped for Undelivered {
    const KIND: FrameKind = FrameKind::Undelivered;
}

/// Where a frame's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadRef<'a> {
    Inline(&'a [u8]),
    /// In a segment of this many bytes whose descriptor comes with the frame.
    Segment(u64),
    /// In a leased segment that begins with this many bytes; its token follows it.
    Leased(u64),
    /// The same, leased to one reader.
    LeasedToOne(u64),
}

impl PayloadRef<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Segment(len) | Self::Leased(len) | Self::LeasedToOne(len) => *len,
        }
    }

    /// How many descriptors bring it.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        match self {
            Self::Inline(_) => 0,
            Self::Segment(_) => 1,
            Self::Leased(_) | Self::LeasedToOne(_) => 2,
        }
    }

    /// True when there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A frame, borrowed from the bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: FrameKind,
    /// Protobuf bytes.
    pub envelope: &'a [u8],
    pub payload: PayloadRef<'a>,
}

/// A message that is no frame. Each message is whole, so short means malformed, never incomplete.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame of {length} bytes is shorter than its header")]
    Short {
        /// Bytes received.
        length: usize,
    },
    #[error("frame version {version} is not supported, this side speaks {FRAME_VERSION}")]
    Version { version: u8 },
    /// A kind or flag that does not exist, or a kind that does not belong here.
    #[error("frame kind {kind} with flags {flags:#x} is not expected here")]
    Kind {
        /// Kind byte.
        kind: u8,
        /// Flags byte.
        flags: u8,
    },
    /// Lengths in the header that do not add up to the message.
    #[error(
        "frame lengths do not match: envelope {envelope}, payload {payload}, message {message}"
    )]
    Lengths {
        /// Envelope length in the header.
        envelope: u32,
        /// Payload length in the header.
        payload: u64,
        /// Bytes after the header.
        message: usize,
    },
    /// An envelope that is no protobuf of its kind.
    #[error("envelope cannot be read: {source}")]
    Envelope {
        /// What the parser says.
        #[source]
        source: protobuf::Error,
    },
}

/// Header and envelope of a frame; send it followed by the payload's bytes when they are inline.
///
/// # Errors
/// When the envelope is longer than [`ENVELOPE_MAX`] or an inline payload longer than [`INLINE_MAX`].
pub fn encode_head<E: Enveloped>(
    envelope: &E,
    payload: PayloadRef<'_>,
) -> Result<Vec<u8>, FrameError> {
    let envelope_len = usize::try_from(envelope.compute_size()).unwrap_or(usize::MAX);
    let lengths = || FrameError::Lengths {
        envelope: u32::try_from(envelope_len).unwrap_or(u32::MAX),
        payload: payload.len(),
        message: envelope_len,
    };
    let (flags, too_long) = match payload {
        PayloadRef::Inline(bytes) => (0, bytes.len() > INLINE_MAX),
        PayloadRef::Segment(_) => (FLAG_SEGMENT, false),
        PayloadRef::Leased(_) => (FLAGS_LEASED, false),
        PayloadRef::LeasedToOne(_) => (FLAGS_ONE_READER, false),
    };
    if too_long || envelope_len > ENVELOPE_MAX {
        return Err(lengths());
    }
    let mut head = Vec::with_capacity(HEADER_LEN + envelope_len);
    head.extend_from_slice(&[FRAME_VERSION, E::KIND as u8, flags, 0]);
    head.extend_from_slice(&u32::try_from(envelope_len).map_err(|_| lengths())?.to_le_bytes());
    head.extend_from_slice(&payload.len().to_le_bytes());
    envelope.write_to_vec(&mut head).map_err(|source| FrameError::Envelope { source })?;
    Ok(head)
}

/// The frame in one message.
///
/// # Errors
/// When the message is no frame of this version.
pub fn decode(message: &[u8]) -> Result<Frame<'_>, FrameError> {
    let Some((header, body)) = message.split_first_chunk::<HEADER_LEN>() else {
        return Err(FrameError::Short { length: message.len() });
    };
    let [version, kind, flags, zero, rest @ ..] = *header;
    if version != FRAME_VERSION {
        return Err(FrameError::Version { version });
    }
    let known = match kind {
        1 => FrameKind::Hello,
        2 => FrameKind::Request,
        3 => FrameKind::Response,
        4 => FrameKind::Assignment,
        6 => FrameKind::SharedConnection,
        7 => FrameKind::Undelivered,
        _ => return Err(FrameError::Kind { kind, flags }),
    };
    if !matches!(flags, 0 | FLAG_SEGMENT | FLAGS_LEASED | FLAGS_ONE_READER) || zero != 0 {
        return Err(FrameError::Kind { kind, flags });
    }
    let [e0, e1, e2, e3, payload_len @ ..] = rest;
    let envelope_len = u32::from_le_bytes([e0, e1, e2, e3]);
    let payload_len = u64::from_le_bytes(payload_len);
    let lengths = || FrameError::Lengths {
        envelope: envelope_len,
        payload: payload_len,
        message: body.len(),
    };
    let split = usize::try_from(envelope_len).map_err(|_| lengths())?;
    if split > ENVELOPE_MAX || split > body.len() {
        return Err(lengths());
    }
    let (envelope, inline) = body.split_at(split);
    let payload = if flags & FLAG_SEGMENT == 0 {
        if inline.len() as u64 != payload_len || inline.len() > INLINE_MAX {
            return Err(lengths());
        }
        PayloadRef::Inline(inline)
    } else if inline.is_empty() {
        match flags {
            FLAGS_ONE_READER => PayloadRef::LeasedToOne(payload_len),
            FLAGS_LEASED => PayloadRef::Leased(payload_len),
            _ => PayloadRef::Segment(payload_len),
        }
    } else {
        return Err(lengths());
    };
    Ok(Frame { kind: known, envelope, payload })
}

impl Frame<'_> {
    /// The envelope, when the frame is of its kind.
    ///
    /// # Errors
    /// When the frame is of another kind or its envelope cannot be read.
    pub fn open<E: Enveloped>(&self) -> Result<E, FrameError> {
        if self.kind != E::KIND {
            return Err(FrameError::Kind { kind: self.kind as u8, flags: 0 });
        }
        E::parse_from_bytes(self.envelope).map_err(|source| FrameError::Envelope { source })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::envelope::{Group, Join, Metadata};

    fn request(target: &str) -> Request {
        Request {
            call_id: vec![7; 16],
            target: target.to_owned(),
            attempt: 1,
            ..Request::default()
        }
    }

    proptest! {
        #[test]
        fn a_flipped_header_byte_never_yields_other_payload_bytes(index in 0_usize..16, value: u8) {
            let payload = [9_u8; 40];
            let mut bytes = encode_head(&request("t"), PayloadRef::Inline(&payload)).unwrap();
            bytes.extend_from_slice(&payload);
            bytes[index] = value;
            if let Ok(Frame { payload: PayloadRef::Inline(read), .. }) = decode(&bytes) {
                prop_assert_eq!(read, &payload[..]);
            }
        }
    }

    #[test]
    fn limits_hold() {
        let big = vec![0; INLINE_MAX + 1];
        assert!(encode_head(&request("t"), PayloadRef::Inline(&big)).is_err());
        assert!(encode_head(&request("t"), PayloadRef::Inline(&big[1..])).is_ok());
        assert!(encode_head(&request(&"x".repeat(ENVELOPE_MAX)), PayloadRef::Segment(1)).is_err());
        assert!(decode(&[]).is_err());
    }

    #[test]
    fn the_largest_metadata_fits_beside_the_largest_payload() {
        let count = cwasi_abi::METADATA_ENTRIES_MAX;
        let room = cwasi_abi::METADATA_MAX / count - cwasi_abi::METADATA_OVERHEAD;
        let pair =
            |number| Metadata::of(format!("http.header.x-{number:03}"), vec![0xe9; room - 17]);
        let metadata: Vec<_> = (0..count).map(pair).collect();
        assert!(crate::metadata::length(&metadata) + count > cwasi_abi::METADATA_MAX);
        let request = Request {
            metadata,
            run: vec![1; 16],
            traceparent: "t".repeat(55),
            tracestate: "t".repeat(512),
            join: Some(Join { key: "k".repeat(255), ..Join::default() }).into(),
            ..request(&"t".repeat(255))
        };
        let group = Some(Group::default()).into();
        let assignment =
            Assignment { request: Some(request).into(), group, ..Assignment::default() };
        let mut bytes = encode_head(&assignment, PayloadRef::Inline(&[7; INLINE_MAX])).unwrap();
        bytes.extend_from_slice(&[7; INLINE_MAX]);
        assert!(bytes.len() <= FRAME_MAX);
        assert_eq!(decode(&bytes).unwrap().open::<Assignment>().unwrap(), assignment);
    }

    #[test]
    fn a_frame_opens_as_its_own_kind_only() {
        let bytes = encode_head(&request("t"), PayloadRef::Segment(1 << 30)).unwrap();
        let frame = decode(&bytes).unwrap();
        assert_eq!(frame.payload.len(), 1 << 30);
        assert!(matches!(frame.open::<Response>(), Err(FrameError::Kind { .. })));
    }

    #[test]
    fn only_a_segment_is_leased() {
        let mut bytes = encode_head(&request("t"), PayloadRef::Leased(7)).unwrap();
        assert_eq!(decode(&bytes).unwrap().payload, PayloadRef::Leased(7));
        let to_one = encode_head(&request("t"), PayloadRef::LeasedToOne(7)).unwrap();
        assert_eq!(decode(&to_one).unwrap().payload, PayloadRef::LeasedToOne(7));
        for flags in [2, 4, 5, 6, 8, 15, 255] {
            bytes[2] = flags;
            assert!(matches!(decode(&bytes), Err(FrameError::Kind { .. })), "{flags}");
        }
    }
}
