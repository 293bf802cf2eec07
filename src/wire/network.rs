//! Messages between nodes through Redis (`proto/network.proto`): their version, locations. Used by shim daemons.
//!
//! Invariant: a message is untrusted input, because every client of that Redis can write it. It is bounded, and used
//! only after [`decode`] and through the typed accessors here.

use protobuf::{EnumOrUnknown, Message, MessageField};

use super::envelope::{CallStatus, Metadata};
pub use super::generated::network::{
    Answer, AnswerKind, Call, Caller, Claim, DemandRecord, Event, LinkRecord, LocationList,
    LocationRecord, Payload, Question,
};
use super::ids::{CallId, Identity, has_identity};
use super::metadata;

/// Version of calls and answers that this build speaks: 2 since chunks are announced before they are there.
pub const CALL_VERSION: u32 = 2;
/// Version of what stays in Redis, locations and one-way messages, and of demand.
pub const KEPT_VERSION: u32 = 1;
/// Longest message in bytes: an inline payload, metadata, and everything beside them.
pub const MESSAGE_MAX: usize = 160 * 1024;
/// Longest payload that travels inside a message, in bytes. Small on purpose: Redis cuts off a subscriber
/// that is 32 MB behind (`client-output-buffer-limit pubsub`).
pub const INLINE_MAX: usize = super::frame::INLINE_MAX;

/// Bytes that are no message of ours.
#[derive(Debug, thiserror::Error)]
pub enum NetworkCodecError {
    #[error("message of {length} bytes is longer than {MESSAGE_MAX}")]
    TooLong {
        /// Bytes received.
        length: usize,
    },
    /// No such protobuf message.
    #[error("message of {length} bytes cannot be read: {source}")]
    Malformed {
        /// Bytes received.
        length: usize,
        /// What the parser says.
        #[source]
        source: protobuf::Error,
    },
    /// A version that this build does not speak.
    #[error("version {version} of the network protocol is not supported, this node speaks {ours}")]
    Version { version: u32, ours: u32 },
    /// A field that must be there.
    #[error("message without a usable {field}")]
    Field { field: &'static str },
}

pub trait Versioned: Message {
    /// The one that this build speaks.
    const OURS: u32;

    fn version(&self) -> u32;
}

macro_rules! versioned {
    ($($message:ty => $ours:expr),*) => {
        $(impl Versioned for $message {
            const OURS: u32 = $ours;

            fn version(&self) -> u32 {
                self.version
            }
        })*
    };
}
versioned!(
    Call => CALL_VERSION,
    Answer => CALL_VERSION,
    DemandRecord => KEPT_VERSION,
    LocationList => KEPT_VERSION,
    LocationRecord => KEPT_VERSION,
    Question => KEPT_VERSION,
    Event => KEPT_VERSION
);

/// A message with any version: enough to answer its sender with an error.
///
/// # Errors
/// When it is too long or no message of type `T`.
pub fn parse<T: Versioned>(bytes: &[u8]) -> Result<T, NetworkCodecError> {
    let length = bytes.len();
    if length > MESSAGE_MAX {
        return Err(NetworkCodecError::TooLong { length });
    }
    T::parse_from_bytes(bytes).map_err(|source| NetworkCodecError::Malformed { length, source })
}

/// A message of our version.
///
/// # Errors
/// As [`parse`], and for any other version.
pub fn decode<T: Versioned>(bytes: &[u8]) -> Result<T, NetworkCodecError> {
    let message: T = parse(bytes)?;
    check_version(&message)?;
    Ok(message)
}

/// # Errors
/// When the message has a version that this build does not speak.
pub fn check_version<T: Versioned>(message: &T) -> Result<(), NetworkCodecError> {
    match message.version() {
        version if version == T::OURS => Ok(()),
        version => Err(NetworkCodecError::Version { version, ours: T::OURS }),
    }
}

/// Bytes of a message.
#[must_use]
pub fn encode<T: Versioned>(message: &T) -> Vec<u8> {
    message.write_to_bytes().expect("proto3 messages have no required fields")
}

/// Id of one publication of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TryId(pub [u8; 16]);

impl TryId {
    /// From a message's field.
    ///
    /// # Errors
    /// When it has not 16 bytes.
    pub fn from_field(bytes: &[u8]) -> Result<Self, NetworkCodecError> {
        bytes.try_into().map(Self).map_err(|_| NetworkCodecError::Field { field: "try id" })
    }
}

impl Payload {
    /// A payload inside its message.
    #[must_use]
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        Self { inline: bytes, ..Self::default() }
    }

    /// A payload that lies in Redis.
    #[must_use]
    pub fn of_claim(claim: Claim) -> Self {
        Self { claim: MessageField::some(claim), ..Self::default() }
    }

    /// A payload whose bytes follow the message.
    #[must_use]
    pub fn following(length: u64) -> Self {
        Self { follows: length, ..Self::default() }
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        let beside = self.follows.max(self.inline.len() as u64);
        self.claim.as_ref().map_or(beside, |claim| claim.length)
    }
}

has_identity!(Caller, Question);

impl Caller {
    /// One caller on one node.
    #[must_use]
    pub fn of(identity: &Identity, workflow: &str, instance: &str, node: &str) -> Self {
        Self {
            namespace: identity.namespace.clone(),
            pod_namespace: identity.pod_namespace.clone(),
            function: identity.function.clone(),
            workflow: workflow.to_owned(),
            instance: instance.to_owned(),
            node: node.to_owned(),
            ..Self::default()
        }
    }
}

impl Call {
    /// The call's id.
    ///
    /// # Errors
    /// When it has not 16 bytes.
    pub fn id(&self) -> Result<CallId, NetworkCodecError> {
        CallId::from_slice(&self.call_id).ok_or(NetworkCodecError::Field { field: "call id" })
    }
}

impl Answer {
    /// An answer to one publication.
    #[must_use]
    pub fn of(
        from: &str,
        id: TryId,
        kind: AnswerKind,
        outcome: CallStatus,
        payload: Payload,
    ) -> Self {
        Self {
            version: CALL_VERSION,
            try_id: id.0.to_vec(),
            kind: EnumOrUnknown::new(kind),
            errno: outcome.errno,
            detail: outcome.detail.into(),
            metadata: outcome.metadata,
            payload: MessageField::some(payload),
            from: from.to_owned(),
            ..Self::default()
        }
    }

    /// How the call ended.
    #[must_use]
    pub fn outcome(&self) -> CallStatus {
        CallStatus::read(self.errno, self.detail, &self.metadata)
    }
}

/// How a node proves itself on direct connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeProof {
    /// By its public key: DER of a `SubjectPublicKeyInfo`.
    Key(Vec<u8>),
    /// By a certificate with this name, of an authority that both sides trust.
    Certificate { node: String },
}

/// How a shim is reached without Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `host:port` of its node.
    pub address: String,
    /// The shim on that node.
    pub shim: String,
    pub proof: NodeProof,
}

impl Link {
    fn record(self) -> LinkRecord {
        let key = match self.proof {
            NodeProof::Key(key) => key,
            NodeProof::Certificate { .. } => Vec::new(),
        };
        LinkRecord { address: self.address, shim: self.shim, key, ..LinkRecord::default() }
    }

    /// `node` is the one whose instance the record is about: a certificate has to name that.
    fn of(record: LinkRecord, node: &str) -> Self {
        let LinkRecord { address, shim, key, .. } = record;
        let proof = if key.is_empty() {
            NodeProof::Certificate { node: node.to_owned() }
        } else {
            NodeProof::Key(key)
        };
        Self { address, shim, proof }
    }
}

/// Where one instance of a function is reached over the network; or, without node and instance, the announcement of a
/// function that is started on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub identity: Identity,
    /// Name of its node.
    pub node: String,
    pub instance: String,
    /// Who may call it (`cwasi.allow`); empty = all functions in its scope.
    pub allow: Vec<String>,
    /// Largest payload that it takes, in bytes.
    pub max_payload: u64,
    /// Most bytes of a request's metadata that it takes; 0 = its shim is of the version before.
    pub max_head: u32,
    /// HTTP gateways may call it.
    pub http: bool,
    /// How its shim is reached without Redis, if it is.
    pub link: Option<Box<Link>>,
}

impl Question {
    /// Which instances of this function are there?
    #[must_use]
    pub fn about(identity: &Identity) -> Self {
        Self {
            version: KEPT_VERSION,
            namespace: identity.namespace.clone(),
            pod_namespace: identity.pod_namespace.clone(),
            function: identity.function.clone(),
            ..Self::default()
        }
    }
}

impl LocationList {
    /// As many of these as a message takes.
    #[must_use]
    pub fn of(locations: &[Location]) -> Self {
        let mut list = Self { version: KEPT_VERSION, ..Self::default() };
        list.locations = locations.iter().map(Location::record).collect();
        while encode(&list).len() > MESSAGE_MAX {
            list.locations.truncate(list.locations.len() / 2);
        }
        list
    }

    /// Those of our version.
    pub fn into_locations(self) -> impl Iterator<Item = Location> {
        let ours = self.locations.into_iter().filter(|record| check_version(record).is_ok());
        ours.map(Location::of)
    }
}

impl Location {
    /// The value of its key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.record())
    }

    fn record(&self) -> LocationRecord {
        LocationRecord {
            version: KEPT_VERSION,
            namespace: self.identity.namespace.clone(),
            pod_namespace: self.identity.pod_namespace.clone(),
            function: self.identity.function.clone(),
            node: self.node.clone(),
            instance: self.instance.clone(),
            allow: self.allow.clone(),
            max_payload: self.max_payload,
            max_head: self.max_head,
            http: self.http,
            link: self.link.as_deref().cloned().map(Link::record).into(),
            ..LocationRecord::default()
        }
    }

    /// A location from the value of its key.
    ///
    /// # Errors
    /// When it is no record of our version.
    pub fn decode(bytes: &[u8]) -> Result<Self, NetworkCodecError> {
        decode(bytes).map(Self::of)
    }

    fn of(record: LocationRecord) -> Self {
        let identity = Identity {
            namespace: record.namespace,
            pod_namespace: record.pod_namespace,
            function: record.function,
        };
        let (node, instance) = (record.node, record.instance);
        let LocationRecord { allow, max_payload, max_head, http, link, .. } = record;
        let link = link.into_option().map(|link| Box::new(Link::of(link, &node)));
        Self { identity, node, instance, allow, max_payload, max_head, http, link }
    }
}

impl Event {
    /// With the metadata of a request, which readers of the version before get as they read it. What is too long for
    /// them is their error.
    #[must_use]
    pub fn with_metadata(self, metadata: Vec<Metadata>) -> Self {
        let earlier = metadata::for_earlier(&metadata);
        if earlier == metadata || metadata::length(&earlier) > metadata::EARLIER_MAX {
            return Self { metadata, ..self };
        }
        Self { metadata: earlier, exact_metadata: metadata, ..self }
    }

    /// Takes the metadata of the request.
    pub fn take_metadata(&mut self) -> Vec<Metadata> {
        let earlier = std::mem::take(&mut self.metadata);
        match std::mem::take(&mut self.exact_metadata) {
            exact if exact.is_empty() => earlier,
            exact => exact,
        }
    }
}

/// The calls of a function that is started on demand, as one shim sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub identity: Identity,
    /// An instance of the function, or the channel of a caller's shim.
    pub source: String,
    /// Calls that wait until an instance has started.
    pub waiting: u64,
    /// Calls that the instance runs or has queued.
    pub running: u64,
    /// True if the instance has begun calls since its last message.
    pub began: bool,
}

impl Demand {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(&DemandRecord {
            version: KEPT_VERSION,
            namespace: self.identity.namespace.clone(),
            pod_namespace: self.identity.pod_namespace.clone(),
            function: self.identity.function.clone(),
            source: self.source.clone(),
            waiting: self.waiting,
            running: self.running,
            began: self.began,
            ..DemandRecord::default()
        })
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When it is no record of our version.
    pub fn decode(bytes: &[u8]) -> Result<Self, NetworkCodecError> {
        let record: DemandRecord = decode(bytes)?;
        let identity = Identity {
            namespace: record.namespace,
            pod_namespace: record.pod_namespace,
            function: record.function,
        };
        let DemandRecord { source, waiting, running, began, .. } = record;
        Ok(Self { identity, source, waiting, running, began })
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_location_round_trips() {
        let identity =
            Identity { namespace: "n".into(), pod_namespace: "p".into(), function: "f".into() };
        let location = Location {
            identity,
            node: "edge".into(),
            instance: "1".into(),
            allow: vec!["a".into(), "m/*".into()],
            max_payload: 7,
            max_head: 5,
            http: true,
            link: Some(Box::new(Link {
                address: "edge:9470".into(),
                shim: "ab".into(),
                proof: NodeProof::Key(vec![1, 2]),
            })),
        };
        assert_eq!(Location::decode(&location.encode()).unwrap(), location);
        let list = encode(&LocationList::of(&[location.clone(), location.clone()]));
        let list: Vec<_> = decode::<LocationList>(&list).unwrap().into_locations().collect();
        assert_eq!(list, [location.clone(), location.clone()]);
        let mut certified = location.clone();
        certified.link.as_mut().unwrap().proof = NodeProof::Certificate { node: "edge".into() };
        assert_eq!(Location::decode(&certified.encode()).unwrap(), certified);
        let question = encode(&Question::about(&location.identity));
        assert_eq!(decode::<Question>(&question).unwrap().identity(), location.identity);
        let many = vec![Location { allow: vec!["a".repeat(1000)], ..location }; 256];
        let list = LocationList::of(&many);
        assert!(list.locations.len() > 32 && encode(&list).len() <= MESSAGE_MAX);
    }

    #[test]
    fn other_versions_can_be_answered() {
        let call = Call { version: 7, reply_to: "r".into(), ..Call::default() };
        let bytes = encode(&call);
        assert!(matches!(
            decode::<Call>(&bytes),
            Err(NetworkCodecError::Version { version: 7, .. })
        ));
        assert_eq!(parse::<Call>(&bytes).unwrap().reply_to, "r");
    }

    #[test]
    fn an_event_has_metadata_for_readers_of_the_version_before() {
        let text = vec![Metadata::of("http.header.a", "1"), Metadata::of("http.header.b", "2")];
        let event = Event::default().with_metadata(text.clone());
        assert!(event.metadata == text && event.exact_metadata.is_empty());
        for length in [1, 8000] {
            let value = vec![0xe9; length];
            let exact =
                vec![Metadata::of("http.header.a", value), Metadata::of("http.header.a", "")];
            let event = Event::default().with_metadata(exact.clone());
            // A longer one is no text that they could read.
            assert_eq!(
                (event.metadata.len(), event.exact_metadata.len()),
                if length == 1 { (1, 2) } else { (2, 0) }
            );
            let mut event = Event { version: KEPT_VERSION, ..event };
            event = decode(&encode(&event)).unwrap();
            assert_eq!(event.take_metadata(), exact);
        }
        let most = vec![Metadata::of("http.header.a", vec![0xe9; cwasi_abi::METADATA_MAX - 30])];
        assert!(encode(&Event::default().with_metadata(most)).len() < MESSAGE_MAX);
    }

    #[test]
    fn the_largest_head_fits_beside_the_largest_inline_payload() {
        let metadata =
            vec![Metadata::of("http.header.a", vec![0xe9; cwasi_abi::METADATA_MAX - 30])];
        let payload = Payload::of_bytes(vec![7; INLINE_MAX]);
        let call = Call { payload: Some(payload).into(), metadata, ..Call::default() };
        assert!(encode(&call).len() + 8192 < MESSAGE_MAX);
    }

    #[test]
    fn long_messages_are_refused() {
        let bytes = vec![0; MESSAGE_MAX + 1];
        assert!(matches!(decode::<Call>(&bytes), Err(NetworkCodecError::TooLong { .. })));
    }
}
