//! Which of a pod's annotations are those of one container. Runs in launcher and shim daemon.

use std::collections::BTreeMap;

use super::{CRI_CONTAINER_NAME, KEYS, PREFIX};

/// Likeness of two names, at most 1, from which one may be the other misspelt.
const NEAR: f64 = 0.85;

/// The `cwasi.*` annotations of a pod, as one container sees them.
pub(super) struct Values<'a> {
    pub(super) values: BTreeMap<&'static str, &'a str>,
    pub(super) shares_role: Option<String>,
    pub(super) doubts: Vec<String>,
}

/// The values of this container: `key.<container>` overrides `key`.
pub(super) fn own_values<'a>(
    all: &BTreeMap<&'a str, &'a str>,
    problems: &mut Vec<String>,
) -> Values<'a> {
    let container = all.get(CRI_CONTAINER_NAME).copied();
    let mut values = BTreeMap::new();
    let mut own = BTreeMap::new();
    let mut others = Vec::new();
    for (given, value) in all.iter().filter(|(key, _)| is_ours(key)) {
        if let Some(key) = KEYS.iter().find(|key| *key == given) {
            values.insert(*key, *value);
            continue;
        }
        let suffixed = KEYS.iter().filter_map(|key| {
            let rest = given.strip_prefix(key)?.strip_prefix('.')?;
            Some((*key, rest))
        });
        // `cwasi.fan-in` is a key, and so is `cwasi.fan-in.timeout`.
        let suffixed = suffixed.max_by_key(|(key, _)| key.len());
        match (suffixed, container) {
            (Some((key, name)), Some(container)) if name == container => {
                own.insert(key, *value);
            }
            (Some((_, name)), Some(_)) => others.push((*given, name)),
            _ => problems.push(unknown(given)),
        }
    }
    let says_role = |values: &BTreeMap<&str, &str>| {
        values.contains_key("cwasi.role") || values.contains_key("cwasi.secondary.function")
    };
    let shares_role = container.filter(|_| says_role(&values) && !says_role(&own));
    let doubts = match container {
        // Who has annotations of its own is not the one that a misspelt name means.
        Some(container) if own.is_empty() => misspelt(&others, container),
        _ => Vec::new(),
    };
    values.extend(own);
    Values { values, shares_role: shares_role.map(str::to_owned), doubts }
}

/// Keys for other containers whose names are much like this one's.
fn misspelt(others: &[(&str, &str)], container: &str) -> Vec<String> {
    let near = others.iter().filter(|(_, name)| strsim::jaro_winkler(name, container) >= NEAR);
    near.map(|(key, name)| {
        format!("{key} is for a container {name}; this one is called {container}, and no annotation names it")
    })
    .collect()
}

/// True for a key with the prefix `cwasi.` in any case. Other cases are unknown keys.
pub(super) fn is_ours(key: &str) -> bool {
    key.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

fn unknown(given: &str) -> String {
    let nearest = KEYS
        .iter()
        .max_by(|a, b| strsim::jaro_winkler(a, given).total_cmp(&strsim::jaro_winkler(b, given)));
    match nearest {
        Some(key) => format!("{given} is not known; did you mean {key}?"),
        None => format!("{given} is not known"),
    }
}
