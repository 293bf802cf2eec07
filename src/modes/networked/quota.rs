//! How much of a namespace's one-way messages may wait in Redis, so that one tenant does not fill it for all.
//!
//! Runs in the shim daemon. One hash for each namespace of senders has the bytes of its waiting messages, by sender and
//! stream. The transaction that adds an entry to a stream, or removes it, changes the hash, too. So nothing but an
//! outside change (a stream that expired or was deleted, a shim of an older version, Redis without memory) makes the
//! hash say too much: a shim that finds a quota full compares the hash with the streams before it refuses a message.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use redis::{FromRedisValue, Pipeline, Value, from_redis_value};

use super::error::NetworkError;
use super::session::RedisSession;
use super::{announcement_key, demand, instances_key, short_stream_key, stream_key};
use cwasi_modes::Overload;
use cwasi_wire::ids::{Identity, short_hash};
use cwasi_wire::network::Location;

/// Entries of one stream; more are refused.
const ENTRIES_MAX: u64 = 100_000;
/// Bytes that Redis takes for an entry beside its fields.
const ENTRY_BYTES: u64 = 128;
/// Bytes that Redis takes for a stream beside its entries: its first node, and its group.
const STREAM_BYTES: u64 = 6 << 10;
/// One sender has a namespace's quota divided by this.
const SENDER_SHARE: u64 = 2;
/// Between two comparisons of a hash with the streams.
const CORRECTED_EVERY: Duration = Duration::from_secs(2);
/// Fields of a hash beyond which the ones that stand for nothing are removed.
const FIELDS_MAX: usize = 4096;

/// Limits of a namespace's waiting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all its senders; each has half of it.
    pub bytes: u64,
    /// Functions without an instance.
    pub functions: usize,
    /// How long a stream stays without a new message and without an instance.
    pub kept: Duration,
}

/// What one message adds to its sender's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The hash of the sender's namespace.
    pub(super) key: String,
    /// Its field for this sender and stream.
    pub(super) field: String,
    /// Bytes of the message in Redis, about.
    pub(super) bytes: u64,
}

impl Charge {
    /// For a message of `length` bytes, its envelope included.
    #[must_use]
    pub fn of(sender: &Identity, callee: &Identity, length: usize) -> Self {
        let scope = short_hash(&[&sender.namespace, &sender.pod_namespace]);
        let bytes = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(ENTRY_BYTES);
        let field = format!("{}:{}", sender.short(), callee.short());
        Self { key: format!("cwasi:sent:{scope}"), field, bytes }
    }

    /// Adds the message's bytes `sign` times.
    pub(super) fn add_to(&self, pipe: &mut Pipeline, sign: i64) {
        let bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX).saturating_mul(sign);
        pipe.cmd("HINCRBY").arg(&self.key).arg(&self.field).arg(bytes);
    }

    /// Subtracts the bytes of a message that is not stored after all.
    pub(super) async fn subtract(&self, session: &RedisSession) {
        let mut pipe = redis::pipe();
        self.add_to(&mut pipe, -1);
        match session.transaction::<(i64,)>(&mut pipe).await {
            Ok((left,)) => self.settle(session, true, left).await,
            Err(error) => tracing::debug!(%error, "bytes of waiting messages are too many"),
        }
    }

    /// After the bytes were subtracted and `left` was left: adds again what was subtracted without reason, because
    /// another shim had `removed` the message, or because it had never been counted. If that fails, the sender may send
    /// so much more.
    pub(super) async fn settle(&self, session: &RedisSession, removed: bool, left: i64) {
        let excess = match removed {
            true => left.min(0).unsigned_abs().min(self.bytes),
            false => self.bytes,
        };
        if excess == 0 {
            return;
        }
        let mut cmd = redis::cmd("HINCRBY");
        cmd.arg(&self.key).arg(&self.field).arg(excess);
        if let Err(error) = session.run::<i64>("HINCRBY", &cmd).await {
            tracing::debug!(%error, "bytes of waiting messages are too few");
        }
    }
}

/// What waits when a message is admitted.
#[derive(Clone, Debug, Default)]
struct Waiting {
    /// Entries of the callee's stream.
    entries: u64,
    /// The stream is there.
    is_made: bool,
    /// The callee has an instance.
    is_announced: bool,
    /// The hash of the sender's namespace.
    fields: HashMap<String, i64>,
    /// Of a callee that is started on demand.
    on_demand: Option<Location>,
}

/// There is room for a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    /// The stream is there already.
    pub(super) is_made: bool,
    /// The callee's announcement, if messages start its first instance.
    pub(super) on_demand: Option<Location>,
}

/// Whether there is room for a message.
///
/// # Errors
/// When Redis does not say.
pub(super) async fn admit(
    session: &RedisSession,
    (sender, callee): (&Identity, &Identity),
    charge: &Charge,
    limits: &Limits,
) -> Result<Result<Admission, Overload>, NetworkError> {
    let mut waiting = query(session, callee, charge).await?;
    let mut full = waiting.full(sender, callee, charge, limits);
    let doubtful = full.is_some() || waiting.fields.len() > FIELDS_MAX;
    if doubtful && correct(session, charge, &waiting.fields).await? {
        waiting = query(session, callee, charge).await?;
        full = waiting.full(sender, callee, charge, limits);
    }
    let Waiting { is_made, on_demand, .. } = waiting;
    Ok(full.map_or(Ok(Admission { is_made, on_demand }), Err))
}

async fn query(
    session: &RedisSession,
    callee: &Identity,
    charge: &Charge,
) -> Result<Waiting, NetworkError> {
    let stream = stream_key(callee);
    let mut pipe = redis::pipe();
    pipe.cmd("XLEN").arg(&stream).cmd("EXISTS").arg(&stream);
    pipe.cmd("EXISTS").arg(instances_key(callee)).cmd("HGETALL").arg(&charge.key);
    pipe.cmd("GET").arg(announcement_key(callee));
    type Reply = (u64, bool, bool, HashMap<String, i64>, Option<Vec<u8>>);
    let (entries, is_made, is_announced, fields, value): Reply =
        session.transaction(&mut pipe).await?;
    let on_demand = value.and_then(|value| demand::read(callee, &value));
    Ok(Waiting { entries, is_made, is_announced, fields, on_demand })
}

impl Waiting {
    /// Which limit one more message would exceed.
    fn full(
        &self,
        sender: &Identity,
        callee: &Identity,
        charge: &Charge,
        limits: &Limits,
    ) -> Option<Overload> {
        if self.entries >= ENTRIES_MAX {
            let target = callee.function.clone();
            return Some(Overload::Messages { target, limit: ENTRIES_MAX });
        }
        let (mut bytes, mut own) = (charge.bytes, charge.bytes);
        let mut streams = BTreeSet::from([stream_of(&charge.field)]);
        let by_sender = format!("{}:", sender.short());
        for (field, count) in &self.fields {
            let Some(count) = u64::try_from(*count).ok().filter(|count| *count > 0) else {
                continue;
            };
            bytes = bytes.saturating_add(count);
            streams.insert(stream_of(field));
            if field.starts_with(&by_sender) {
                own = own.saturating_add(count);
            }
        }
        let count = streams.len();
        let bytes = bytes.saturating_add(STREAM_BYTES.saturating_mul(count as u64));
        let namespace = || match sender.pod_namespace.as_str() {
            "" => sender.namespace.clone(),
            pod_namespace => pod_namespace.to_owned(),
        };
        if bytes > limits.bytes {
            let whose = format!("namespace {}", namespace());
            return Some(Overload::Waiting { whose, limit: limits.bytes });
        }
        if own > limits.bytes / SENDER_SHARE {
            let whose = format!("function {}", sender.function);
            return Some(Overload::Waiting { whose, limit: limits.bytes / SENDER_SHARE });
        }
        if count > limits.functions && !self.is_announced && self.entries == 0 {
            let limit = limits.functions;
            return Some(Overload::Functions { namespace: namespace(), limit });
        }
        None
    }
}

fn stream_of(field: &str) -> &str {
    field.split_once(':').map_or(field, |(_, stream)| stream)
}

/// Lowers what the hash says to what its streams can hold. False when this was done a moment ago.
async fn correct(
    session: &RedisSession,
    charge: &Charge,
    fields: &HashMap<String, i64>,
) -> Result<bool, NetworkError> {
    let key = &charge.key;
    let mut cmd = redis::cmd("SET");
    cmd.arg(format!("{key}:corrected")).arg(1).arg("NX");
    cmd.arg("PX").arg(CORRECTED_EVERY.as_secs() * 1000);
    if session.run::<Option<String>>("SET", &cmd).await?.is_none() {
        return Ok(false);
    }
    // One transaction: an entry that is added or removed between two reads would count as an error.
    let streams: BTreeSet<&str> = fields.keys().map(|field| stream_of(field)).collect();
    let mut pipe = redis::pipe();
    pipe.cmd("HGETALL").arg(key);
    for stream in &streams {
        let stream = short_stream_key(stream);
        pipe.cmd("XLEN").arg(&stream);
        pipe.cmd("MEMORY").arg("USAGE").arg(&stream).arg("SAMPLES").arg(0);
    }
    let mut replies = session.transaction::<Vec<Value>>(&mut pipe).await?.into_iter();
    let now: HashMap<String, i64> = read(replies.next());
    let measured = streams.iter().map(|stream| {
        let (entries, usage): (u64, Option<u64>) = (read(replies.next()), read(replies.next()));
        let used = usage.unwrap_or_default().saturating_add(entries.saturating_mul(ENTRY_BYTES));
        (*stream, if entries == 0 { 0 } else { used })
    });
    let mut pipe = redis::pipe();
    for (field, change) in corrections(&now, &measured.collect()) {
        match change {
            Correction::Lower(bytes) => {
                pipe.cmd("HINCRBY").arg(key).arg(field).arg(bytes.saturating_neg());
            }
            Correction::Remove => drop(pipe.cmd("HDEL").arg(key).arg(field)),
        }
    }
    if !pipe.is_empty() {
        session.transaction::<Value>(&mut pipe).await?;
    }
    Ok(true)
}

/// A reply; what Redis would answer about nothing when it has another shape.
fn read<T: FromRedisValue + Default>(value: Option<Value>) -> T {
    value.and_then(|value| from_redis_value(value).ok()).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Correction {
    Lower(i64),
    Remove,
}

/// What is wrong in a hash, when its streams hold at most `measured` bytes.
fn corrections<'a>(
    fields: &'a HashMap<String, i64>,
    measured: &HashMap<&str, u64>,
) -> Vec<(&'a str, Correction)> {
    let correction = |(field, count): (&'a String, &i64)| {
        // Others are newer than the measurement's list.
        let used = *measured.get(stream_of(field))?;
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        let change = match *count {
            count if count <= 0 || used == 0 => Correction::Remove,
            count if count > used => Correction::Lower(count - used),
            _ => return None,
        };
        Some((field.as_str(), change))
    };
    fields.iter().filter_map(correction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes: 1 << 20, functions: 3, kept: Duration::from_secs(60) };

    fn identity(function: &str) -> Identity {
        let (namespace, pod_namespace) = ("n".to_owned(), String::new());
        Identity { namespace, pod_namespace, function: function.to_owned() }
    }

    /// What is full for a message from `sender` to `callee`.
    fn full(waiting: &Waiting, sender: &str, callee: &str, length: usize) -> Option<String> {
        let (sender, callee) = (identity(sender), identity(callee));
        let charge = Charge::of(&sender, &callee, length);
        waiting.full(&sender, &callee, &charge, &LIMITS).map(|full| full.to_string())
    }

    fn waiting(counts: &[(&str, &str, i64)]) -> Waiting {
        let field = |(sender, callee, count): &(&str, &str, i64)| {
            (Charge::of(&identity(sender), &identity(callee), 0).field, *count)
        };
        Waiting { fields: counts.iter().map(field).collect(), ..Waiting::default() }
    }

    #[test]
    fn a_namespace_and_each_sender_have_a_quota() {
        let half = 512 << 10;
        let one = waiting(&[("a", "x", half - 100)]);
        let text = full(&one, "a", "y", 10).unwrap();
        assert!(text.contains("function a") && text.contains("waiting_max"), "{text}");
        assert_eq!(full(&one, "b", "y", 10), None);
        let two = waiting(&[("a", "x", half - 100), ("b", "x", half - 20_000)]);
        assert!(full(&two, "c", "x", 20_000).unwrap().contains("namespace n"));
        assert_eq!(full(&two, "c", "x", 1_000), None);
        let nothing = waiting(&[("a", "x", 0), ("b", "x", -half)]);
        assert_eq!(full(&nothing, "a", "x", 500 << 10), None);
    }

    #[test]
    fn only_functions_without_instances_count() {
        let three = waiting(&[("a", "x", 1), ("a", "y", 1), ("b", "z", 1), ("b", "w", 0)]);
        let text = full(&three, "a", "v", 1).unwrap();
        assert!(text.contains("3 functions") && text.contains("functions_max"), "{text}");
        assert_eq!(full(&three, "b", "x", 1), None);
        let announced = Waiting { is_announced: true, ..three };
        assert_eq!(full(&announced, "a", "v", 1), None);
    }

    #[test]
    fn hashes_are_lowered_to_their_streams() {
        let counts = [("s:x", 100), ("s:gone", 5), ("s:zero", 0), ("s:new", 7), ("t:x", 10)];
        let fields = counts.map(|(field, count)| (field.to_owned(), count)).into();
        let measured = [("x", 60), ("gone", 0), ("zero", 9)].into();
        let mut found = corrections(&fields, &measured);
        found.sort_by_key(|(field, _)| *field);
        let (lower, remove) = (Correction::Lower(40), Correction::Remove);
        assert_eq!(found, [("s:gone", remove), ("s:x", lower), ("s:zero", remove)]);
    }
}
