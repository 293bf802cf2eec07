//! How many entries wait for a function, for the autoscaler of functions that have no instance. Runs in the operator.

use redis::Value;

use super::super::error::NetworkError;
use super::super::session::RedisSession;
use super::reader::StreamReader;

/// Entries that are counted one by one where Redis does not know their number.
const COUNTED_MAX: u64 = 100;

/// Entries of one stream that wait for a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// No instance has taken them.
    pub undelivered: u64,
    /// An instance runs them, or did before it died.
    pub pending: u64,
}

impl StreamReader {
    /// What waits now; nothing if the group is not there: an instance makes it.
    ///
    /// # Errors
    /// When Redis does not say.
    pub async fn waiting(&self, session: &RedisSession) -> Result<Waiting, NetworkError> {
        if self.is_ours() { self.messages(session).await } else { self.entries(session).await }
    }

    /// In a stream of ours: what is handled leaves it.
    async fn messages(&self, session: &RedisSession) -> Result<Waiting, NetworkError> {
        let mut cmd = redis::cmd("XLEN");
        cmd.arg(self.key());
        let length: u64 = session.run("XLEN", &cmd).await?;
        if length == 0 {
            return Ok(Waiting::default());
        }
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(self.key()).arg(self.group());
        let pending = match session.run::<Value>("XPENDING", &cmd).await {
            Ok(Value::Array(summary)) => summary.first().map_or(0, number),
            Ok(_) => 0,
            Err(NetworkError::Command { reason, .. }) if reason.contains("NOGROUP") => 0,
            Err(error) => return Err(error),
        };
        Ok(Waiting { undelivered: length.saturating_sub(pending), pending })
    }

    /// In a stream of others.
    async fn entries(&self, session: &RedisSession) -> Result<Waiting, NetworkError> {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg("GROUPS").arg(self.key());
        let groups = match session.run::<Value>("XINFO GROUPS", &cmd).await {
            Ok(Value::Array(groups)) => groups,
            Ok(_) => Vec::new(),
            // There is no such stream, or no stream of this name. Other answers, such as a right that is missing, do not
            // say that nothing waits.
            Err(NetworkError::Command { reason, .. })
                if reason.contains("no such key") || reason.contains("WRONGTYPE") =>
            {
                return Ok(Waiting::default());
            }
            Err(error) => return Err(error),
        };
        let groups = groups.iter().map(facts);
        let is_own =
            |name: &Value| matches!(name, Value::BulkString(it) if *it == self.group().as_bytes());
        let Some(group) = groups.into_iter().find(|it| value(it, "name").is_some_and(is_own))
        else {
            return Ok(Waiting::default());
        };
        let pending = value(&group, "pending").map_or(0, number);
        let undelivered = match (value(&group, "lag"), value(&group, "last-delivered-id")) {
            (Some(Value::Int(lag)), _) => u64::try_from(*lag).unwrap_or_default(),
            // Entries between were deleted.
            (_, Some(Value::BulkString(last))) => self.count_after(session, last).await?,
            _ => 0,
        };
        Ok(Waiting { undelivered, pending })
    }

    /// Entries after this one, up to [`COUNTED_MAX`]. The reply has them: only where there is no other way.
    async fn count_after(&self, session: &RedisSession, last: &[u8]) -> Result<u64, NetworkError> {
        let mut cmd = redis::cmd("XRANGE");
        let after = [b"(", last].concat();
        cmd.arg(self.key()).arg(after).arg("+").arg("COUNT").arg(COUNTED_MAX);
        match session.run::<Value>("XRANGE", &cmd).await? {
            Value::Array(entries) => Ok(entries.len() as u64),
            _ => Ok(0),
        }
    }
}

/// Names and values of one group: a flat list, or a map of RESP3.
fn facts(group: &Value) -> Vec<(&Value, &Value)> {
    match group {
        Value::Array(flat) => flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect(),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        _ => Vec::new(),
    }
}

fn value<'a>(group: &[(&'a Value, &'a Value)], name: &str) -> Option<&'a Value> {
    let is = |field: &Value| match field {
        Value::BulkString(bytes) => bytes == name.as_bytes(),
        Value::SimpleString(text) => text == name,
        _ => false,
    };
    group.iter().find(|(field, _)| is(field)).map(|(_, value)| *value)
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or_default(),
        _ => 0,
    }
}
