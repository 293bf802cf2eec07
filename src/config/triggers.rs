//! What runs a function besides calls (`cwasi.triggers`), and which names of Redis a node lets its functions use
//! (`[triggers]` of its configuration). Runs in processes of the host.
//!
//! Invariant: no trigger names a key of the runtime (`cwasi:…`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::values;

/// Most triggers of one function.
pub const TRIGGERS_MAX: usize = 16;
/// Longest name of a stream or channel in bytes.
pub const NAME_MAX: usize = 200;
/// Most entries of [`TriggersConfig::redis`].
const ENTRIES_MAX: usize = 1024;

const STREAM: &str = "redis-stream";
const CHANNEL: &str = "redis-channel";
/// Begins all names of the runtime in Redis.
const OURS: &str = "cwasi:";
/// Between a namespace and the rest of a name that is its own.
const OWN: char = ':';

/// One trigger of a function. Its text is an entry of `cwasi.triggers`, and the name of the caller that the function
/// sees. No function can have such a name, because it has a colon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// Each entry of this Redis stream.
    RedisStream(String),
    /// Each message on this Redis channel.
    RedisChannel(String),
}

impl Trigger {
    /// Name of the stream or channel.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::RedisStream(name) | Self::RedisChannel(name) => name,
        }
    }

    /// Checks the name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        check_name(self.name())
    }

    /// Parses the annotation's value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn list(value: &str) -> Result<Vec<Self>, String> {
        let mut triggers = Vec::new();
        for entry in values::list(value)? {
            let trigger = entry.parse()?;
            if triggers.contains(&trigger) {
                return Err(format!("has the entry `{entry}` twice"));
            }
            triggers.push(trigger);
        }
        if triggers.len() > TRIGGERS_MAX {
            return Err(format!("has more than {TRIGGERS_MAX} entries"));
        }
        Ok(triggers)
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::RedisStream(_) => STREAM,
            Self::RedisChannel(_) => CHANNEL,
        };
        write!(f, "{kind}:{}", self.name())
    }
}

impl FromStr for Trigger {
    type Err = String;

    fn from_str(entry: &str) -> Result<Self, String> {
        let (kind, name) = entry.split_once(':').unwrap_or((entry, ""));
        let trigger = match kind {
            STREAM => Self::RedisStream(name.to_owned()),
            CHANNEL => Self::RedisChannel(name.to_owned()),
            _ => {
                return Err(format!(
                    "has the entry `{entry}`; entries are {STREAM}:NAME and {CHANNEL}:NAME"
                ));
            }
        };
        trigger
            .check()
            .map_err(|problem| format!("has the entry `{entry}`, whose name {problem}"))?;
        Ok(trigger)
    }
}

/// A name as functions may have it in their triggers.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("is empty".to_owned());
    }
    if name.len() > NAME_MAX {
        return Err(format!("is longer than {NAME_MAX} bytes"));
    }
    if !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
        return Err("has a character that is no visible ASCII, or a comma".to_owned());
    }
    if name.contains('*') {
        return Err(
            "has a `*`: a trigger has one stream or channel, patterns are not supported".to_owned()
        );
    }
    if name.starts_with(OURS) {
        return Err(format!("begins with `{OURS}`: these names are the runtime's own"));
    }
    Ok(())
}

/// Which streams and channels the functions of this node may have as triggers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TriggersConfig {
    /// `NAMESPACE/NAME` for names that do not begin with `NAMESPACE:`. The namespace `*` is every one; a name may end
    /// with `*`.
    pub redis: Vec<String>,
}

impl TriggersConfig {
    /// True if functions of this namespace may use this name: it begins with the namespace and a colon, or an entry
    /// allows it.
    #[must_use]
    pub fn permits(&self, namespace: &str, name: &str) -> bool {
        let is_own = name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with(OWN));
        let is_listed = |entry: &String| {
            let Some((scope, pattern)) = entry.split_once('/') else { return false };
            (scope == "*" || scope == namespace)
                && match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                }
        };
        !namespace.is_empty() && (is_own || self.redis.iter().any(is_listed))
    }

    pub(super) fn validate(&self) -> Result<(), String> {
        if self.redis.len() > ENTRIES_MAX {
            return Err(format!("triggers.redis has more than {ENTRIES_MAX} entries"));
        }
        for entry in &self.redis {
            let problem = match entry.split_once('/') {
                None => Some("is not NAMESPACE/NAME".to_owned()),
                Some((scope, _)) if scope != "*" && values::name(scope).is_err() => {
                    Some(format!("has `{scope}` as a namespace"))
                }
                Some((_, "*")) => None,
                Some((_, pattern)) => {
                    let name = pattern.strip_suffix('*').unwrap_or(pattern);
                    check_name(name).err().map(|problem| format!("has a name that {problem}"))
                }
            };
            if let Some(problem) = problem {
                return Err(format!(
                    "triggers.redis: `{entry}` {problem}; entries are such as shop/orders, shop/eu:* or */news"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn entries_name_a_kind_and_a_name() {
        let found = Trigger::list("redis-stream:shop:orders, redis-channel:shop:alarms").unwrap();
        let expected = [
            Trigger::RedisStream("shop:orders".into()),
            Trigger::RedisChannel("shop:alarms".into()),
        ];
        assert_eq!(found, expected);
        let written: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(Trigger::list(&written.join(",")).unwrap(), expected);
    }

    #[test]
    fn wrong_entries_say_what_to_write() {
        let many: Vec<_> = (0..=TRIGGERS_MAX).map(|it| format!("redis-stream:{it}")).collect();
        for (value, part) in [
            ("orders", "entries are redis-stream:NAME and redis-channel:NAME"),
            ("kafka:orders", "entries are redis-stream:NAME"),
            ("redis-stream", "whose name is empty"),
            ("redis-stream:", "whose name is empty"),
            ("redis-stream:a b", "no visible ASCII"),
            ("redis-channel:a*", "patterns are not supported"),
            ("redis-stream:cwasi:ev:0", "the runtime's own"),
            ("redis-stream:a,redis-stream:a", "twice"),
            ("redis-stream:a,,redis-stream:b", "without empty entries"),
            (&format!("redis-stream:{}", "x".repeat(NAME_MAX + 1)), "longer than 200 bytes"),
            (&many.join(","), "more than 16"),
        ] {
            let error = Trigger::list(value).unwrap_err();
            assert!(error.contains(part), "{value}: {error}");
        }
        assert_eq!(Trigger::list("redis-stream:a,redis-channel:a").unwrap().len(), 2);
    }

    #[test]
    fn a_namespace_has_its_own_names_and_those_of_the_list() {
        let none = TriggersConfig::default();
        let redis = ["shop/orders", "shop/eu:*", "*/news"].map(str::to_owned).to_vec();
        let some = TriggersConfig { redis };
        assert_eq!(some.validate(), Ok(()));
        for (namespace, name, by_default, listed) in [
            ("shop", "shop:orders", true, true),
            ("shop", "shop:", true, true),
            ("shop", "shopping:orders", false, false),
            ("shop", "orders", false, true),
            ("shop", "orders2", false, false),
            ("shop", "eu:orders", false, true),
            ("bank", "eu:orders", false, false),
            ("bank", "shop:orders", false, false),
            ("bank", "news", false, true),
            ("", ":orders", false, false),
        ] {
            assert_eq!(none.permits(namespace, name), by_default, "{namespace} {name}");
            assert_eq!(some.permits(namespace, name), listed, "{namespace} {name}");
        }
    }

    #[test]
    fn wrong_permissions_are_refused() {
        for (entry, part) in [
            ("orders", "is not NAMESPACE/NAME"),
            ("-/orders", "as a namespace"),
            ("shop/", "is empty"),
            ("shop/a*b", "patterns"),
            ("shop/cwasi:*", "the runtime's own"),
        ] {
            let config = TriggersConfig { redis: vec![entry.to_owned()] };
            let error = config.validate().unwrap_err();
            assert!(error.contains(part) && error.contains("shop/orders"), "{error}");
        }
        assert_eq!(TriggersConfig { redis: vec!["*/*".to_owned()] }.validate(), Ok(()));
    }

    proptest! {
        #[test]
        fn no_trigger_has_a_name_of_the_runtime(value in "(redis-(stream|channel):)?(cwasi:)?.{0,30}") {
            for trigger in Trigger::list(&value).unwrap_or_default() {
                prop_assert!(!trigger.name().starts_with(OURS));
                prop_assert_eq!(trigger.to_string().parse(), Ok(trigger));
            }
        }
    }
}
