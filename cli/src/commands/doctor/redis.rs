//! Redis: whether it answers, and the limits that decide whether calls survive load.

use std::net::IpAddr;
use std::time::Duration;

use cwasi_config::NodeConfig;
use cwasi_config::node::config_file;
use cwasi_coordinator::registry::Registry;
use cwasi_host::network::Network;
use cwasi_networked::NetworkError;
use cwasi_networked::limits::ServerLimits;
use cwasi_wire::ids::Identity;

use super::{Checks, State, link};

/// Longest wait for Redis.
const REDIS_MAX: Duration = Duration::from_secs(5);
/// Bytes that a subscriber may be behind: Redis' default, for which messages are made.
const SUBSCRIBER_BYTES: u64 = 32 << 20;
/// What Redis does at `maxmemory` that loses no data.
const NO_EVICTION: &str = "noeviction";

pub(super) async fn examine(checks: &mut Checks, config: &NodeConfig) {
    let network = match Network::start(config, &Registry::new(&config.state_dir)) {
        Ok(Some(network)) if !network.has_redis() => {
            checks.add(State::Ok, "Redis", "none: nodes of link_peers, and no emit");
            return link::examine(checks, config, &network).await;
        }
        Ok(Some(network)) => network,
        Ok(None) => {
            if config.link_ca.is_some() {
                link::own_proof(checks, config);
            }
            link::own_entry(checks, config);
            let file = config_file();
            let found = format!(
                "none: calls stay on this host; redis_url in {} joins nodes",
                file.display()
            );
            return checks.add(State::Ok, "Redis", found);
        }
        Err(error) => return checks.add(State::Fault, "Redis", error.to_string()),
    };
    // Any name: the answer says that Redis answers.
    let absent = Identity {
        namespace: "cwasi".into(),
        pod_namespace: String::new(),
        function: "doctor".into(),
    };
    match tokio::time::timeout(REDIS_MAX, network.locations(&absent)).await {
        Ok(Ok(_)) => {
            checks.add(State::Ok, "Redis", "answers");
            encryption(checks, config);
            limits(checks, network.limits().await);
            link::examine(checks, config, &network).await;
        }
        Ok(Err(error)) => {
            let found = format!("{error}; check redis_url in {}", config_file().display());
            checks.add(State::Fault, "Redis", found);
        }
        Err(_elapsed) => {
            let found = format!(
                "no answer within {} s; check redis_url and the server",
                REDIS_MAX.as_secs()
            );
            checks.add(State::Fault, "Redis", found);
        }
    }
}

/// Payloads cross the network as they are.
fn encryption(checks: &mut Checks, config: &NodeConfig) {
    let url = config.redis_url.as_ref().map_or("", |url| url.reveal());
    let Some(rest) = url.strip_prefix("redis://") else {
        return checks.add(State::Ok, "Redis TLS", "encrypted");
    };
    let host = rest.rsplit('@').next().unwrap_or_default();
    let host = host.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _port)| host).trim_matches(['[', ']']);
    if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        checks.add(State::Ok, "Redis TLS", "none, on this machine");
    } else {
        let found = "payloads and password are not encrypted: use rediss:// in redis_url";
        checks.add(State::Note, "Redis TLS", found);
    }
}

fn limits(checks: &mut Checks, limits: Result<ServerLimits, NetworkError>) {
    const WHAT: &str = "Redis limits";
    let limits = match limits {
        Ok(limits) => limits,
        Err(error) => {
            let found = format!("not known ({error}); allow CONFIG GET to see them here");
            return checks.add(State::Note, WHAT, found);
        }
    };
    let before = checks.0.len();
    if (1..SUBSCRIBER_BYTES).contains(&limits.subscriber_bytes) {
        let found = format!(
            "Redis cuts a shim off that is {} bytes behind; set client-output-buffer-limit pubsub to 32mb 8mb 60 or more",
            limits.subscriber_bytes
        );
        checks.add(State::Fault, WHAT, found);
    }
    if limits.memory > 0 && limits.policy != NO_EVICTION {
        let found = format!(
            "at maxmemory ({} bytes) Redis drops payloads and decisions (maxmemory-policy {}), so calls fail; set \
             maxmemory-policy to {NO_EVICTION}",
            limits.memory, limits.policy
        );
        checks.add(State::Fault, WHAT, found);
    }
    if checks.0.len() == before {
        checks.add(State::Ok, WHAT, "subscribers and memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(limits: Result<ServerLimits, NetworkError>) -> Vec<(State, String)> {
        let mut checks = Checks::default();
        super::limits(&mut checks, limits);
        checks.0.into_iter().map(|check| (check.state, check.found)).collect()
    }

    #[test]
    fn limits_that_break_calls_are_faults_with_their_setting() {
        let default = ServerLimits {
            subscriber_bytes: SUBSCRIBER_BYTES,
            memory: 0,
            policy: NO_EVICTION.to_owned(),
        };
        assert_eq!(found(Ok(default.clone()))[0].0, State::Ok);
        let small = ServerLimits { subscriber_bytes: 1 << 20, ..default.clone() };
        let [(State::Fault, text)] = &found(Ok(small))[..] else { panic!("a fault") };
        assert!(text.contains("client-output-buffer-limit"), "{text}");
        let evicting = ServerLimits { memory: 1, policy: "allkeys-lru".to_owned(), ..default };
        let [(State::Fault, text)] = &found(Ok(evicting))[..] else { panic!("a fault") };
        assert!(text.contains("set maxmemory-policy to noeviction"), "{text}");
    }
}
