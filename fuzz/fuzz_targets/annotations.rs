//! Annotations of a container (`config::annotations`), one to a line.
#![no_main]

use cwasi_abi::{PARTS_MAX, PAYLOAD_MAX};
use cwasi_config::annotations::{
    CONCURRENCY_MAX, EMBED_MAX, FAN_IN_MIN, FunctionSpec, MEMORY_MAX, QUEUE_MAX,
};
use cwasi_config::function_name;
use cwasi_fuzz::memory::bounded;
use cwasi_wire::control::{Isolation, Role};
use cwasi_wire::egress::ENTRIES_MAX;
use libfuzzer_sys::fuzz_target;

/// Bytes of a message with the problems that are shown, beside the values that it quotes.
const MESSAGE: usize = 16 << 10;

fuzz_target!(|text: &str| {
    let pairs = || text.lines().filter_map(|line| line.split_once('='));
    match bounded(text.as_bytes(), 96, || FunctionSpec::parse(pairs())) {
        Ok(spec) => check(&spec),
        Err(error) => {
            assert!(!error.problems.is_empty());
            let message = error.to_string();
            assert!(message.len() <= MESSAGE + 8 * text.len(), "{} bytes", message.len());
        }
    }
});

fn check(spec: &FunctionSpec) {
    assert!(spec.concurrency.is_none_or(|it| (1..=CONCURRENCY_MAX).contains(&u64::from(it))));
    assert!(u64::from(spec.queue) <= QUEUE_MAX);
    assert!((1..=PAYLOAD_MAX).contains(&spec.max_payload));
    assert!(spec.memory.is_none_or(|memory| (65_536..=MEMORY_MAX).contains(&memory)));
    assert!(spec.timeout.is_none_or(|timeout| !timeout.is_zero()));
    assert!(spec.idle.is_none_or(|idle| !idle.is_zero()));
    assert!(spec.embed.len() <= EMBED_MAX && spec.network.len() <= ENTRIES_MAX);
    assert!(spec.embed.is_empty() || !(spec.workflow.is_empty() && spec.trust.is_empty()));
    // Names become parts of paths and channels.
    let names = [spec.function.as_deref().unwrap_or("f"), &spec.workflow, &spec.trust];
    for name in names.into_iter().filter(|name| !name.is_empty()) {
        assert_eq!(function_name(name).as_deref(), Ok(name));
        assert!(name.len() <= 63 && !name.starts_with('.') && !name.contains('/'));
    }
    for entry in &spec.embed {
        assert_eq!(function_name(&entry.module), Ok(entry.module.clone()));
        assert!(entry.digest.as_ref().is_none_or(|digest| digest.len() == 71));
    }
    for entry in &spec.network {
        assert_eq!(entry.to_string().parse().as_ref(), Ok(entry));
    }
    if let Some(fan_in) = spec.fan_in {
        let fixed = FAN_IN_MIN..=u64::from(PARTS_MAX);
        assert!(fan_in.parts == 0 || fixed.contains(&u64::from(fan_in.parts)));
        assert!(fan_in.timeout_ms > 0);
    }
    if spec.role == Role::Primary {
        assert!(spec.allow.is_empty() && spec.fan_in.is_none() && spec.max_requests == 0);
        assert_eq!((spec.concurrency, spec.isolation), (None, Isolation::Request));
    }
}
