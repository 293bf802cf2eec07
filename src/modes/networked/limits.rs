//! Limits of a Redis server that decide whether calls survive load. Read for `cwasi doctor`.

use std::collections::HashMap;

use super::error::NetworkError;
use super::session::RedisSession;

/// Class of subscribers in `client-output-buffer-limit`.
const SUBSCRIBERS: &str = "pubsub";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bytes behind which a subscriber is cut off at once; 0 = never.
    pub subscriber_bytes: u64,
    /// Bytes of all data; 0 = no limit.
    pub memory: u64,
    /// What happens at that limit, in Redis' words.
    pub policy: String,
}

impl ServerLimits {
    /// Reads them.
    ///
    /// # Errors
    /// When the server does not answer, or forbids `CONFIG`.
    pub async fn read(session: &RedisSession) -> Result<Self, NetworkError> {
        // One parameter for each command: Redis 6 takes no more.
        let mut settings = HashMap::new();
        for name in ["client-output-buffer-limit", "maxmemory", "maxmemory-policy"] {
            let mut cmd = redis::cmd("CONFIG");
            cmd.arg("GET").arg(name);
            settings.extend(session.run::<HashMap<String, String>>("CONFIG GET", &cmd).await?);
        }
        Ok(Self::of(&settings))
    }

    fn of(settings: &HashMap<String, String>) -> Self {
        let value = |name| settings.get(name).map_or("", String::as_str);
        let mut words = value("client-output-buffer-limit").split_whitespace();
        let subscriber_bytes = words.find(|word| *word == SUBSCRIBERS).and_then(|_| words.next());
        let number = |text: &str| text.parse().unwrap_or(0);
        Self {
            subscriber_bytes: subscriber_bytes.map_or(0, number),
            memory: number(value("maxmemory")),
            policy: value("maxmemory-policy").to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed() {
        let settings = [
            (
                "client-output-buffer-limit",
                "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
            ),
            ("maxmemory", "1000"),
            ("maxmemory-policy", "allkeys-lru"),
        ];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let policy = "allkeys-lru".to_owned();
        let expected = ServerLimits { subscriber_bytes: 32 << 20, memory: 1000, policy };
        assert_eq!(ServerLimits::of(&settings), expected);
        assert_eq!(ServerLimits::of(&HashMap::new()), ServerLimits::default());
    }
}
