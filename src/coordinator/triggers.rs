//! Whether a function can have its triggers on this node. Pure. Runs in the shim daemon, and in the command.

use super::selection::scope_of;
use cwasi_config::NodeConfig;
use cwasi_config::triggers::{Trigger, TriggersConfig};
use cwasi_wire::ids::Identity;

/// What a node has for triggers.
#[derive(Clone, Debug, Default)]
pub struct TriggerPolicy {
    /// Its configuration names a Redis.
    pub has_redis: bool,
    /// Which names it permits.
    pub names: TriggersConfig,
}

/// A trigger that a function cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    #[error(
        "cwasi.triggers={trigger} needs a Redis, and this node has none: set redis_url in its configuration"
    )]
    NoRedis { trigger: Trigger },
    #[error(
        "cwasi.triggers={trigger}: triggers of the namespace {namespace} have names that begin with `{namespace}:`; choose \
         such a name, or allow this one in the node's configuration: [triggers] redis = [\"{namespace}/{}\"]",
        trigger.name()
    )]
    Name { trigger: Trigger, namespace: String },
}

impl TriggerPolicy {
    /// What the configuration of a node says.
    #[must_use]
    pub fn of(node: &NodeConfig) -> Self {
        Self { has_redis: node.redis_url.is_some(), names: node.triggers.clone() }
    }

    /// Checks the triggers of a function.
    ///
    /// # Errors
    /// The first one that it cannot have.
    pub fn check(&self, function: &Identity, triggers: &[Trigger]) -> Result<(), TriggerError> {
        let namespace = scope_of(function);
        for trigger in triggers {
            if !self.has_redis {
                return Err(TriggerError::NoRedis { trigger: trigger.clone() });
            }
            if !self.names.permits(namespace, trigger.name()) {
                let (trigger, namespace) = (trigger.clone(), namespace.to_owned());
                return Err(TriggerError::Name { trigger, namespace });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pod_namespace: &str) -> Identity {
        Identity {
            namespace: "k8s.io".into(),
            pod_namespace: pod_namespace.into(),
            function: "f".into(),
        }
    }

    #[test]
    fn names_are_those_of_the_functions_namespace() {
        let policy = TriggerPolicy { has_redis: true, names: TriggersConfig::default() };
        let of = |name: &str| [Trigger::RedisStream(name.to_owned())];
        assert_eq!(policy.check(&identity("shop"), &of("shop:orders")), Ok(()));
        assert_eq!(policy.check(&identity(""), &of("k8s.io:orders")), Ok(()));
        for (pod_namespace, name) in [("shop", "orders"), ("shop", "bank:x"), ("a", "k8s.io:x")] {
            let error = policy.check(&identity(pod_namespace), &of(name)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("[\"{pod_namespace}/{name}\"]")), "{text}");
            assert!(text.contains(&format!("begin with `{pod_namespace}:`")), "{text}");
            let names = TriggersConfig { redis: vec![format!("{pod_namespace}/{name}")] };
            let listed = TriggerPolicy { has_redis: true, names };
            assert_eq!(listed.check(&identity(pod_namespace), &of(name)), Ok(()));
        }
    }

    #[test]
    fn a_node_without_redis_has_no_triggers() {
        let policy = TriggerPolicy::default();
        let triggers = [Trigger::RedisChannel("shop:a".into())];
        let error = policy.check(&identity("shop"), &triggers).unwrap_err().to_string();
        assert!(error.contains("redis-channel:shop:a") && error.contains("redis_url"), "{error}");
        assert_eq!(policy.check(&identity("shop"), &[]), Ok(()));
    }
}
