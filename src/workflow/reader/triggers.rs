//! The triggers of a function: each is an entry of `cwasi.triggers`.

use cwasi_config::triggers::Trigger;

use super::Reader;
use super::values::{Given, given};
use crate::document::{Node, Value};
use crate::fields;

impl Reader<'_> {
    /// The annotation's value; `None` without triggers.
    pub(super) fn triggers(&mut self, node: &Node, path: &str) -> Option<String> {
        let Value::List(nodes) = &node.value else {
            let kind = node.value.kind();
            self.fault(node.location, format!("{path} must be a list, not {kind}"));
            return None;
        };
        let triggers: Vec<_> =
            nodes.iter().filter_map(|node| self.trigger(node, &format!("{path}[]"))).collect();
        (!triggers.is_empty()).then(|| triggers.join(","))
    }

    fn trigger(&mut self, node: &Node, path: &str) -> Option<String> {
        let fields = self.fields(node, path, fields::TRIGGER);
        let entry = given(&fields, "redis")?;
        let path = format!("{path}.redis");
        let fields = self.fields(&entry.node, &path, fields::REDIS_TRIGGER);
        let (stream, channel) = (given(&fields, "stream"), given(&fields, "channel"));
        let (entry, of): (_, fn(String) -> Trigger) = match (stream, channel) {
            (Some(stream), None) => (stream, Trigger::RedisStream),
            (None, Some(channel)) => (channel, Trigger::RedisChannel),
            (Some(_), Some(_)) | (None, None) => {
                let text = format!("{path} must have one of `stream` and `channel`");
                self.fault(node.location, text);
                return None;
            }
        };
        let name = self.text(&entry.node, &format!("{path}.{}", entry.key))?;
        let trigger = of(name.to_owned());
        if let Err(problem) = trigger.check() {
            let text = format!("{path}.{}: {name} {problem}", entry.key);
            self.fault(entry.node.location, text);
            return None;
        }
        Some(trigger.to_string())
    }

    /// A function that may have no pod has no channel: nothing would listen to it.
    pub(super) fn channels_need_a_pod(&mut self, function: &Given<'_>, path: &str) {
        let Some(Value::List(nodes)) = given(function, "triggers").map(|it| &it.node.value) else {
            return;
        };
        let of = |node: &Node, name: &str| match &node.value {
            Value::Map(entries) => {
                entries.iter().find(|it| it.key == name).map(|it| it.node.clone())
            }
            Value::Null | Value::Text(_) | Value::List(_) => None,
        };
        for channel in nodes.iter().filter_map(|node| of(&of(node, "redis")?, "channel")) {
            let text = format!(
                "{path}.triggers[].redis.channel needs scale.min: 1 or more: without a pod nothing listens to the channel; \
                 entries of a `stream` wait"
            );
            self.fault(channel.location, text);
        }
    }
}
