//! Annotations `cwasi.*` of one container → [`FunctionSpec`] (table in `docs/annotations.md`).
//!
//! Every problem is reported at once. An unknown key is an error that names the nearest valid key.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use cwasi_abi::{PARTS_MAX, PAYLOAD_MAX};

use super::embed;
pub use super::embed::{EMBED_MAX, Embed};
use super::values;
use crate::wire::control::{FanIn, Isolation, ModeHint, Partial, Role};
use crate::wire::egress::{ENTRIES_MAX, Entry};

/// Most workers of one function.
pub const CONCURRENCY_MAX: u64 = 256;
/// Longest queue of one function.
pub const QUEUE_MAX: u64 = 65_536;
/// Workers of a function that does not say.
pub const CONCURRENCY_DEFAULT: u32 = 1;
/// Queue of a function that does not say.
pub const QUEUE_DEFAULT: u32 = 64;
/// Payload limit of a function that does not say, in bytes.
pub const MAX_PAYLOAD_DEFAULT: u64 = 256 << 20;
/// Fewest parts that a fan-in of a fixed number has.
pub const FAN_IN_MIN: u64 = 2;
/// How long a group waits after its first part when the function does not say: half of what callers wait.
pub const FAN_IN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Most linear memory of a 32-bit module, in bytes.
pub const MEMORY_MAX: u64 = 4 << 30;
/// Most problems that one message lists.
const PROBLEMS_MAX: usize = 32;

const PREFIX: &str = "cwasi.";
/// CRI: `sandbox` for the pause container.
const CRI_CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
/// CRI: name of the container within its pod.
const CRI_CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";
/// CRI: id of the pod's sandbox, the group's key.
pub const CRI_SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
/// CRI: Kubernetes namespace of the pod.
pub const CRI_SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";
/// CRI: image that the container was made from.
pub const CRI_IMAGE_NAME: &str = "io.kubernetes.cri.image-name";

/// Every key, in the order of `docs/annotations.md`.
pub const KEYS: [&str; 20] = [
    "cwasi.role",
    "cwasi.secondary.function",
    "cwasi.function",
    "cwasi.workflow",
    "cwasi.trust",
    "cwasi.mode",
    "cwasi.embed",
    "cwasi.allow",
    "cwasi.concurrency",
    "cwasi.queue",
    "cwasi.isolation",
    "cwasi.timeout",
    "cwasi.max-payload",
    "cwasi.memory",
    "cwasi.network",
    FAN_IN,
    FAN_IN_TIMEOUT,
    FAN_IN_PARTIAL,
    "cwasi.max-requests",
    "cwasi.idle",
];

/// Keys that say something about secondaries only.
const SECONDARY_ONLY: [&str; 8] = [
    "cwasi.allow",
    "cwasi.concurrency",
    "cwasi.queue",
    FAN_IN,
    FAN_IN_TIMEOUT,
    FAN_IN_PARTIAL,
    "cwasi.max-requests",
    "cwasi.idle",
];

const FAN_IN: &str = "cwasi.fan-in";
const FAN_IN_TIMEOUT: &str = "cwasi.fan-in.timeout";
const FAN_IN_PARTIAL: &str = "cwasi.fan-in.partial";

/// What the annotations of one container say about its function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Primary or secondary.
    pub role: Role,
    /// Function name, when annotated.
    pub function: Option<String>,
    /// Workflow, empty when there is none.
    pub workflow: String,
    /// Trust group, empty when there is none.
    pub trust: String,
    /// What is to run in its VM.
    pub embed: Vec<Embed>,
    /// Which modes its calls may take.
    pub mode: ModeHint,
    /// Who may call it; empty = its own scope.
    pub allow: Vec<String>,
    /// Workers.
    pub concurrency: u32,
    /// Requests that may wait.
    pub queue: u32,
    /// How long an instance lives.
    pub isolation: Isolation,
    /// Longest invocation.
    pub timeout: Option<Duration>,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Most linear memory in bytes.
    pub memory: Option<u64>,
    /// Destinations on the network; empty = no sockets.
    pub network: Vec<Entry>,
    /// Exit after this many requests; 0 = never.
    pub max_requests: u64,
    /// Exit after this long without a request.
    pub idle: Option<Duration>,
    /// Calls are parts of groups.
    pub fan_in: Option<FanIn>,
    /// Kubernetes namespace of the pod; empty outside Kubernetes.
    pub pod_namespace: String,
    /// Id of the pod's sandbox; empty outside Kubernetes.
    pub pod: String,
    /// `cwasi.*` keys that were given (for native containers, where they are an error).
    pub given: Vec<String>,
}

impl Default for FunctionSpec {
    fn default() -> Self {
        Self {
            role: Role::Primary,
            function: None,
            workflow: String::new(),
            trust: String::new(),
            embed: Vec::new(),
            mode: ModeHint::Auto,
            allow: Vec::new(),
            concurrency: CONCURRENCY_DEFAULT,
            queue: QUEUE_DEFAULT,
            isolation: Isolation::Request,
            timeout: None,
            max_payload: MAX_PAYLOAD_DEFAULT,
            memory: None,
            network: Vec::new(),
            max_requests: 0,
            idle: None,
            fan_in: None,
            pod_namespace: String::new(),
            pod: String::new(),
            given: Vec::new(),
        }
    }
}

/// All that is wrong with a container's annotations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct AnnotationError {
    /// One line each.
    pub problems: Vec<String>,
}

impl fmt::Display for AnnotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.problems[..self.problems.len().min(PROBLEMS_MAX)];
        write!(f, "bad annotations: {}", shown.join("; "))?;
        match self.problems.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl FunctionSpec {
    /// Reads the annotations of one container.
    ///
    /// # Errors
    /// Every problem together.
    pub fn parse<'a>(
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, AnnotationError> {
        let all: BTreeMap<&str, &str> = annotations.into_iter().collect();
        let text = |key: &str| all.get(key).map_or(String::new(), |value| (*value).to_owned());
        let mut spec = Self {
            pod: text(CRI_SANDBOX_ID),
            pod_namespace: text(CRI_SANDBOX_NAMESPACE),
            ..Self::default()
        };
        if all.get(CRI_CONTAINER_TYPE) == Some(&"sandbox") {
            return Ok(spec);
        }
        let mut problems = Vec::new();
        let values = own_values(&all, &mut problems);
        spec.given = values.keys().map(|key| (*key).to_owned()).collect();
        for (key, value) in &values {
            if let Err(problem) = spec.apply(key, value) {
                problems.push(format!("{key}={value} {problem}"));
            }
        }
        spec.check_together(&values, &mut problems);
        if problems.is_empty() { Ok(spec) } else { Err(AnnotationError { problems }) }
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "cwasi.role" => self.role = role(value)?,
            "cwasi.secondary.function" => match value {
                "true" => self.role = Role::Secondary,
                "false" => {}
                _ => return Err("must be true or false".to_owned()),
            },
            "cwasi.function" => self.function = Some(values::name(value)?),
            "cwasi.workflow" => self.workflow = values::name(value)?,
            "cwasi.mode" => self.mode = mode(value)?,
            "cwasi.allow" => self.allow = allow(value)?,
            "cwasi.concurrency" => self.concurrency = small(value, 1, CONCURRENCY_MAX)?,
            "cwasi.queue" => self.queue = small(value, 0, QUEUE_MAX)?,
            "cwasi.isolation" => self.isolation = isolation(value)?,
            "cwasi.timeout" => self.timeout = Some(values::duration(value)?),
            "cwasi.max-payload" => self.max_payload = values::size(value, PAYLOAD_MAX)?,
            "cwasi.memory" => self.memory = Some(values::size(value, MEMORY_MAX)?),
            "cwasi.network" => self.network = network(value)?,
            "cwasi.max-requests" => self.max_requests = values::number(value, 1, u64::MAX)?,
            "cwasi.idle" => self.idle = Some(values::duration(value)?),
            "cwasi.trust" => self.trust = values::name(value)?,
            "cwasi.embed" => self.embed = embed::parse(value)?,
            FAN_IN => self.fan_in_mut().parts = fan_in_parts(value)?,
            FAN_IN_TIMEOUT => self.fan_in_mut().timeout_ms = milliseconds(values::duration(value)?),
            FAN_IN_PARTIAL => self.fan_in_mut().partial = partial(value)?,
            _ => return Err("is not known".to_owned()),
        }
        Ok(())
    }

    fn fan_in_mut(&mut self) -> &mut FanIn {
        self.fan_in.get_or_insert(FanIn {
            parts: 0,
            timeout_ms: milliseconds(FAN_IN_TIMEOUT_DEFAULT),
            partial: Partial::Fail,
        })
    }

    fn check_together(&self, values: &BTreeMap<&str, &str>, problems: &mut Vec<String>) {
        if values.get("cwasi.role") == Some(&"primary")
            && values.get("cwasi.secondary.function") == Some(&"true")
        {
            problems
                .push("cwasi.role=primary contradicts cwasi.secondary.function=true".to_owned());
        }
        if !self.embed.is_empty() && self.workflow.is_empty() && self.trust.is_empty() {
            problems.push(
                "cwasi.embed needs cwasi.workflow or cwasi.trust: what is embedded joins that group"
                    .to_owned(),
            );
        }
        for key in [FAN_IN_TIMEOUT, FAN_IN_PARTIAL] {
            if values.contains_key(key) && !values.contains_key(FAN_IN) {
                problems.push(format!("{key} needs {FAN_IN}: how many parts to wait for"));
            }
        }
        let secondary =
            self.role == Role::Secondary || values.get("cwasi.secondary.function") == Some(&"true");
        if self.isolation != Isolation::Request && !secondary {
            problems.push(format!(
                "cwasi.isolation={} needs cwasi.role=secondary: a primary runs once",
                self.isolation
            ));
        }
        for key in SECONDARY_ONLY.iter().filter(|key| !secondary && values.contains_key(*key)) {
            problems.push(format!("{key} needs cwasi.role=secondary: a primary is not called"));
        }
    }
}

/// The `cwasi.*` values for this container: `key.<container>` wins over `key`.
fn own_values<'a>(
    all: &BTreeMap<&'a str, &'a str>,
    problems: &mut Vec<String>,
) -> BTreeMap<&'static str, &'a str> {
    let container = all.get(CRI_CONTAINER_NAME).copied();
    let mut values = BTreeMap::new();
    let mut own = BTreeMap::new();
    for (given, value) in all.iter().filter(|(key, _)| key.starts_with(PREFIX)) {
        if let Some(key) = KEYS.iter().find(|key| *key == given) {
            values.insert(*key, *value);
            continue;
        }
        let suffixed = KEYS.iter().find_map(|key| {
            let rest = given.strip_prefix(key)?.strip_prefix('.')?;
            Some((*key, rest))
        });
        match (suffixed, container) {
            (Some((key, name)), Some(container)) if name == container => {
                own.insert(key, *value);
            }
            // For another container of the pod.
            (Some(_), Some(_)) => {}
            _ => problems.push(unknown(given)),
        }
    }
    values.extend(own);
    values
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

fn role(value: &str) -> Result<Role, String> {
    match value {
        "primary" => Ok(Role::Primary),
        "secondary" => Ok(Role::Secondary),
        _ => Err("must be primary or secondary".to_owned()),
    }
}

fn mode(value: &str) -> Result<ModeHint, String> {
    match value {
        "auto" => Ok(ModeHint::Auto),
        "local" => Ok(ModeHint::Local),
        "networked" => Ok(ModeHint::Networked),
        "embedded" => Ok(ModeHint::Embedded),
        _ => Err("must be auto, embedded, local or networked".to_owned()),
    }
}

/// Parts of a group; 0 = each call says.
fn fan_in_parts(value: &str) -> Result<u32, String> {
    match value {
        "caller" => Ok(0),
        number => small(number, FAN_IN_MIN, u64::from(PARTS_MAX))
            .map_err(|problem| format!("{problem}, nor `caller`")),
    }
}

fn partial(value: &str) -> Result<Partial, String> {
    match value {
        "fail" => Ok(Partial::Fail),
        "deliver" => Ok(Partial::Deliver),
        _ => Err("must be fail or deliver".to_owned()),
    }
}

/// At least 1.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn isolation(value: &str) -> Result<Isolation, String> {
    match value {
        "request" => Ok(Isolation::Request),
        "snapshot" => Ok(Isolation::Snapshot),
        "instance" => Ok(Isolation::Instance),
        _ => Err("must be request, snapshot or instance".to_owned()),
    }
}

fn allow(value: &str) -> Result<Vec<String>, String> {
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

fn network(value: &str) -> Result<Vec<Entry>, String> {
    let entries = values::list(value)?;
    if entries.len() > ENTRIES_MAX {
        return Err(format!("has more than {ENTRIES_MAX} entries"));
    }
    let entry = |text: String| {
        text.parse::<Entry>().map_err(|error| {
            format!("has the entry `{text}`, which {error}; entries are name:443, *.domain:443, 10.0.0.0/8:443")
        })
    };
    entries.into_iter().map(entry).collect()
}

fn small(value: &str, min: u64, max: u64) -> Result<u32, String> {
    let number = values::number(value, min, max)?;
    u32::try_from(number).map_err(|_| format!("is no whole number from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<FunctionSpec, AnnotationError> {
        FunctionSpec::parse(pairs.iter().copied())
    }

    fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
        parse(pairs).unwrap_err().problems
    }

    #[test]
    fn defaults_hold() {
        let spec = parse(&[("other.key", "x")]).unwrap();
        assert_eq!(spec, FunctionSpec::default());
    }

    #[test]
    fn a_full_secondary_is_read() {
        let spec = parse(&[
            ("cwasi.secondary.function", "true"),
            ("cwasi.function", "process-frames"),
            ("cwasi.workflow", "vehicle-paths"),
            ("cwasi.trust", "city"),
            ("cwasi.embed", "fn_utils"),
            ("cwasi.allow", "extract-frames, edge/*"),
            ("cwasi.concurrency", "4"),
            ("cwasi.queue", "0"),
            ("cwasi.timeout", "1500ms"),
            ("cwasi.max-payload", "64KiB"),
            ("cwasi.memory", "256Mi"),
            ("cwasi.max-requests", "1"),
            ("cwasi.idle", "5m"),
            ("cwasi.mode", "local"),
            ("cwasi.isolation", "instance"),
        ])
        .unwrap();
        assert_eq!(spec.role, Role::Secondary);
        assert_eq!(spec.allow, ["extract-frames", "edge/*"]);
        assert_eq!(spec.isolation, Isolation::Instance);
        assert_eq!((spec.trust.as_str(), spec.embed.len()), ("city", 1));
        assert_eq!((spec.concurrency, spec.queue, spec.max_requests), (4, 0, 1));
        assert_eq!(spec.mode, ModeHint::Local);
        assert_eq!((spec.max_payload, spec.memory), (65_536, Some(256 << 20)));
        assert_eq!(spec.timeout, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn all_problems_come_together_and_name_the_nearest_key() {
        let found = problems(&[
            ("cwasi.rol", "secondary"),
            ("cwasi.concurrency", "0"),
            ("cwasi.timeout", "soon"),
            ("cwasi.max-payload", "2GiB"),
            ("cwasi.function", "-x"),
            ("cwasi.embed", "fn_utils=a@b"),
            ("cwasi.mode", "inside"),
        ]);
        let text = found.join("\n");
        for part in [
            "cwasi.rol is not known; did you mean cwasi.role?",
            "cwasi.concurrency=0",
            "cwasi.timeout=soon",
            "cwasi.max-payload=2GiB",
            "cwasi.function=-x",
            "cwasi.embed=fn_utils=a@b has the entry",
            "cwasi.mode=inside must be auto, embedded",
        ] {
            assert!(text.contains(part), "{part} missing in:\n{text}");
        }
    }

    #[test]
    fn a_fan_in_has_parts_a_time_and_a_policy() {
        let fan_in = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> =
                [("cwasi.role", "secondary")].iter().chain(pairs).copied().collect();
            parse(&pairs).map(|spec| spec.fan_in)
        };
        let expected = |parts, timeout_ms, partial| Ok(Some(FanIn { parts, timeout_ms, partial }));
        assert_eq!(fan_in(&[]), Ok(None));
        assert_eq!(fan_in(&[(FAN_IN, "caller")]), expected(0, 30_000, Partial::Fail));
        let all = [(FAN_IN, "1024"), (FAN_IN_TIMEOUT, "2s"), (FAN_IN_PARTIAL, "deliver")];
        assert_eq!(fan_in(&all), expected(1024, 2000, Partial::Deliver));
        for parts in ["1", "0", "1025", "many", ""] {
            let error = fan_in(&[(FAN_IN, parts)]).unwrap_err().to_string();
            assert!(error.contains("from 2 to 1024, nor `caller`"), "{error}");
        }
        let problems = fan_in(&[(FAN_IN_TIMEOUT, "1s"), (FAN_IN_PARTIAL, "some")]).unwrap_err();
        assert_eq!(problems.problems.len(), 3, "{problems}");
        assert!(problems.to_string().contains("cwasi.fan-in.timeout needs cwasi.fan-in"));
        assert_eq!(
            parse(&[(FAN_IN, "2")]).unwrap_err().problems.len(),
            1,
            "a primary is not called"
        );
    }

    #[test]
    fn destinations_are_read_or_all_refused_ones_named() {
        let spec = parse(&[("cwasi.network", "db:5432, 10.0.0.0/8")]).unwrap();
        let shown: Vec<_> = spec.network.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["db:5432", "10.0.0.0/8:*"]);
        for (value, part) in [
            ("", "without empty entries"),
            ("db", "entry `db`, which has no port"),
            ("10.1.0.0/8", "the network is 10.0.0.0/8"),
            ("db:1,".repeat(65).trim_end_matches(','), "more than 64"),
        ] {
            let found = problems(&[("cwasi.network", value)]).join("");
            assert!(found.contains(part), "{part} missing in: {found}");
        }
    }

    #[test]
    fn roles_do_not_contradict() {
        assert_eq!(problems(&[("cwasi.concurrency", "2")]).len(), 1);
        for isolation in ["instance", "snapshot"] {
            let problems = problems(&[("cwasi.isolation", isolation)]);
            assert!(matches!(&problems[..], [one] if one.to_string().contains(isolation)));
        }
        assert_eq!(
            problems(&[("cwasi.role", "primary"), ("cwasi.secondary.function", "true")]).len(),
            1
        );
    }

    #[test]
    fn a_suffix_wins_for_its_container_and_the_pause_container_is_left_alone() {
        let pod = [
            ("cwasi.role", "primary"),
            ("cwasi.role.b", "secondary"),
            ("cwasi.concurrency.b", "3"),
            (CRI_CONTAINER_NAME, "b"),
            (CRI_SANDBOX_NAMESPACE, "tenant"),
        ];
        let spec = parse(&pod).unwrap();
        assert_eq!((spec.role, spec.concurrency), (Role::Secondary, 3));
        assert_eq!(spec.pod_namespace, "tenant");
        let other = [pod[0], pod[1], pod[2], (CRI_CONTAINER_NAME, "a")];
        assert_eq!(parse(&other).unwrap().role, Role::Primary);
        assert!(parse(&[("cwasi.nonsense", "1"), (CRI_CONTAINER_TYPE, "sandbox")]).is_ok());
        assert_eq!(problems(&[("cwasi.role.b", "secondary")]).len(), 1);
    }

    proptest! {
        #[test]
        fn any_value_is_read_or_refused_with_its_key(index in 0..KEYS.len(), value in ".{0,80}") {
            if let Err(error) = parse(&[("cwasi.role", "secondary"), (KEYS[index], &value)]) {
                prop_assert!(error.problems.iter().all(|problem| problem.starts_with("cwasi.")));
            }
        }

        #[test]
        fn every_unknown_key_is_refused(tail in "[a-z]{1,12}") {
            let key = format!("cwasi.{tail}");
            prop_assume!(!KEYS.contains(&key.as_str()));
            let error = parse(&[(&key, "1")]).unwrap_err();
            prop_assert!(error.to_string().contains("did you mean"));
        }
    }
}
