//! Parses the value of each annotation. Runs in launcher and shim daemon.

use std::time::Duration;

use cwasi_abi::PARTS_MAX;

use super::{FAN_IN_MIN, HttpExposure, MEMORY_MAX, MEMORY_MIN, Protocol};
use crate::values;
use cwasi_wire::control::{Isolation, ModeHint, Partial, Role};
use cwasi_wire::egress::{ENTRIES_MAX, EgressEntry};
use cwasi_wire::trace::{SampleRatio, TraceContext, TraceStart};

pub(super) fn memory(value: &str) -> Result<u64, String> {
    let bytes = values::size(value, MEMORY_MAX)?;
    if bytes < MEMORY_MIN {
        return Err(format!("must be at least one page of WebAssembly, {MEMORY_MIN} bytes"));
    }
    Ok(bytes)
}

pub(super) fn role(value: &str) -> Result<Role, String> {
    match value {
        "primary" => Ok(Role::Primary),
        "secondary" => Ok(Role::Secondary),
        _ => Err("must be primary, secondary or library".to_owned()),
    }
}

pub(super) fn mode(value: &str) -> Result<ModeHint, String> {
    match value {
        "auto" => Ok(ModeHint::Auto),
        "local" => Ok(ModeHint::Local),
        "networked" => Ok(ModeHint::Networked),
        "embedded" => Ok(ModeHint::Embedded),
        _ => Err("must be auto, embedded, local or networked".to_owned()),
    }
}

pub(super) fn protocol(value: &str) -> Result<Protocol, String> {
    let all = [Protocol::Http, Protocol::Openwhisk];
    let found = all.into_iter().find(|protocol| protocol.name() == value);
    found.ok_or_else(|| "must be http or openwhisk".to_owned())
}

/// Parts of a group; 0 = each call gives the number.
pub(super) fn fan_in_parts(value: &str) -> Result<u32, String> {
    match value {
        "caller" => Ok(0),
        number => small(number, FAN_IN_MIN, u64::from(PARTS_MAX))
            .map_err(|problem| format!("{problem}, nor `caller`")),
    }
}

pub(super) fn partial(value: &str) -> Result<Partial, String> {
    match value {
        "fail" => Ok(Partial::Fail),
        "deliver" => Ok(Partial::Deliver),
        _ => Err("must be fail or deliver".to_owned()),
    }
}

pub(super) fn trace(value: &str) -> Result<TraceStart, String> {
    let unsampled = TraceStart::UNSAMPLED;
    match value {
        "never" => Ok(TraceStart { record: false, ..unsampled }),
        "always" => Ok(TraceStart { sample: SampleRatio::ALWAYS, ..unsampled }),
        context if context.contains('-') => {
            let parent = TraceContext::parse(context)
                .ok_or_else(|| "is not a traceparent of W3C trace context".to_owned())?;
            Ok(TraceStart { parent: Some(parent), ..unsampled })
        }
        ratio => {
            let ratio =
                ratio.parse::<f64>().ok().and_then(|ratio| SampleRatio::try_from(ratio).ok());
            let expected = "is not always, never, a share between 0.0 and 1.0, or a traceparent";
            let sample = ratio.ok_or_else(|| expected.to_owned())?;
            Ok(TraceStart { sample, ..unsampled })
        }
    }
}

/// At least 1.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

pub(super) fn isolation(value: &str) -> Result<Isolation, String> {
    match value {
        "request" => Ok(Isolation::Request),
        "snapshot" => Ok(Isolation::Snapshot),
        "instance" => Ok(Isolation::Instance),
        _ => Err("must be request, snapshot or instance".to_owned()),
    }
}

pub(super) fn allow(value: &str) -> Result<Vec<String>, String> {
    let entries = values::list(value)?;
    for entry in &entries {
        let parts: Vec<_> = entry.split('/').collect();
        let fine = match parts.as_slice() {
            ["*"] => true,
            [function] => values::name(function).is_ok(),
            [scope, "*"] => values::name(scope).is_ok(),
            [scope, function] => values::name(scope).is_ok() && values::name(function).is_ok(),
            _ => false,
        };
        if !fine {
            return Err(format!(
                "has the entry `{entry}`; entries are function, namespace/function, namespace/* or *"
            ));
        }
    }
    Ok(entries)
}

pub(super) fn network(value: &str) -> Result<Vec<EgressEntry>, String> {
    let entries = values::list(value)?;
    if entries.len() > ENTRIES_MAX {
        return Err(format!("has more than {ENTRIES_MAX} entries"));
    }
    let entry = |text: String| {
        text.parse::<EgressEntry>().map_err(|error| {
            format!("has the entry `{text}`, which {error}; entries are name:443, *.domain:443, 10.0.0.0/8:443, !10.0.0.1:443")
        })
    };
    entries.into_iter().map(entry).collect()
}

pub(super) fn http(value: &str) -> Result<HttpExposure, String> {
    let mut exposure = HttpExposure::default();
    for entry in values::list(value)? {
        let port = entry.parse::<u16>().ok().filter(|port| *port > 0);
        let known = match (entry.as_str(), port) {
            ("gateway", _) => std::mem::replace(&mut exposure.gateway, true),
            (_, Some(port)) => exposure.port.replace(port).is_some(),
            _ => return Err("must be gateway, a port from 1 to 65535, or both".to_owned()),
        };
        if known {
            return Err("must be gateway, a port, or both: one of each".to_owned());
        }
    }
    Ok(exposure)
}

pub(super) fn small(value: &str, min: u64, max: u64) -> Result<u32, String> {
    let number = values::number(value, min, max)?;
    u32::try_from(number).map_err(|_| format!("is not a whole number from {min} to {max}"))
}
