//! Parses the annotations `cwasi.*` of one container into a [`FunctionSpec`] (table in `docs/annotations.md`). Runs
//! in processes of the host.
//!
//! Invariant: an error lists every problem, and for an unknown key the nearest valid one.

use std::collections::BTreeMap;
use std::time::Duration;

use cwasi_abi::PAYLOAD_MAX;

pub use super::embed::{EMBED_MAX, Embed};
use super::engine::{Engine, UnknownEngine};
use super::http::{idle_timeout, max_head};
use super::triggers::Trigger;
use super::values;
use cwasi_wire::control::{FanIn, Isolation, ModeHint, Partial, Role};
use cwasi_wire::egress::EgressEntry;
use cwasi_wire::trace::TraceStart;

mod error;
mod pods;
mod readers;
#[cfg(test)]
mod tests;

pub use error::AnnotationError;
use pods::{Values, is_ours, own_values};
use readers::{
    allow, fan_in_parts, http, isolation, memory, milliseconds, mode, network, partial, protocol,
    role, small, trace,
};

/// Most workers of one function.
pub const CONCURRENCY_MAX: u64 = 256;
/// Longest queue of one function.
pub const QUEUE_MAX: u64 = 65_536;
/// Default length of the queue.
pub const QUEUE_DEFAULT: u32 = 64;
/// Default payload limit in bytes.
pub const MAX_PAYLOAD_DEFAULT: u64 = 256 << 20;
/// Fewest parts of a fan-in with a fixed number.
pub const FAN_IN_MIN: u64 = 2;
/// Default wait of a group after its first part: half of a caller's default wait.
pub const FAN_IN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Smallest linear memory: a page of WebAssembly.
const MEMORY_MIN: u64 = 65_536;
/// Largest linear memory of a 32-bit module in bytes.
pub const MEMORY_MAX: u64 = 4 << 30;

const PREFIX: &str = "cwasi.";
/// CRI: `sandbox` for the pause container.
const CRI_CONTAINER_TYPE: &str = "io.kubernetes.cri.container-type";
/// CRI: name of the container within its pod.
pub const CRI_CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";
/// CRI: id of the pod's sandbox, which is the group's key.
pub const CRI_SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
/// CRI: Kubernetes namespace of the pod.
pub const CRI_SANDBOX_NAMESPACE: &str = "io.kubernetes.cri.sandbox-namespace";

/// Every key, in the order of `docs/annotations.md`.
pub const KEYS: [&str; 28] = [
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
    "cwasi.max-requests",
    "cwasi.idle",
    "cwasi.engine",
    COMPAT,
    "cwasi.timeout",
    "cwasi.max-payload",
    "cwasi.memory",
    "cwasi.network",
    "cwasi.http",
    MAX_HEAD,
    IDLE_TIMEOUT,
    PROTOCOL,
    TRIGGERS,
    FAN_IN,
    FAN_IN_TIMEOUT,
    FAN_IN_PARTIAL,
    "cwasi.trace",
];

/// Keys for secondaries only.
const SECONDARY_ONLY: [&str; 13] = [
    "cwasi.allow",
    "cwasi.http",
    MAX_HEAD,
    IDLE_TIMEOUT,
    PROTOCOL,
    TRIGGERS,
    "cwasi.concurrency",
    "cwasi.queue",
    FAN_IN,
    FAN_IN_TIMEOUT,
    FAN_IN_PARTIAL,
    "cwasi.max-requests",
    "cwasi.idle",
];

const COMPAT: &str = "cwasi.compat";
/// The only value of `cwasi.compat`: the year of the paper's prototype.
pub const COMPAT_PROTOTYPE: &str = "2023";
const MAX_HEAD: &str = "cwasi.http.max-head";
const IDLE_TIMEOUT: &str = "cwasi.http.idle-timeout";
const PROTOCOL: &str = "cwasi.protocol";
const TRIGGERS: &str = "cwasi.triggers";
const FAN_IN: &str = "cwasi.fan-in";
const FAN_IN_TIMEOUT: &str = "cwasi.fan-in.timeout";
const FAN_IN_PARTIAL: &str = "cwasi.fan-in.partial";

/// How HTTP clients reach a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpExposure {
    /// Through the node's gateway (`cwasi gateway`).
    pub gateway: bool,
    /// On this port of its container's network namespace.
    pub port: Option<u16>,
    /// Most bytes of a head; `None` = as the node says.
    pub max_head: Option<u32>,
    /// How long the port keeps an idle connection; `None` = as the node says.
    pub idle_timeout: Option<Duration>,
}

/// What HTTP clients of a function's port speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The body of a request is the payload.
    #[default]
    Http,
    /// The action protocol of OpenWhisk: `POST /init` once, then `POST /run`.
    Openwhisk,
}

impl Protocol {
    /// Its spelling in `cwasi.protocol`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Openwhisk => "openwhisk",
        }
    }
}

/// The parsed annotations of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    pub role: Role,
    /// True for an image that others embed: the container ends at once.
    pub is_library: bool,
    /// Function name, when annotated.
    pub function: Option<String>,
    /// Workflow, empty when there is none.
    pub workflow: String,
    /// Trust group, empty when there is none.
    pub trust: String,
    pub embed: Vec<Embed>,
    /// Mode of its calls.
    pub mode: ModeHint,
    /// Allowed callers; empty = its own scope.
    pub allow: Vec<String>,
    /// Workers; `None` = as many as requests need ([`crate::workers`]).
    pub concurrency: Option<u32>,
    /// Most requests that wait.
    pub queue: u32,
    /// Lifetime of an instance.
    pub isolation: Isolation,
    /// Engine that runs it; `None` = the node's.
    pub engine: Option<Engine>,
    /// It has the ABI of the paper's prototype (2023).
    pub is_prototype: bool,
    /// Longest invocation.
    pub timeout: Option<Duration>,
    /// Largest payload and response in bytes.
    pub max_payload: u64,
    /// Largest linear memory in bytes.
    pub memory: Option<u64>,
    /// Allowed destinations; empty = no sockets.
    pub network: Vec<EgressEntry>,
    /// How HTTP clients reach it.
    pub http: HttpExposure,
    /// What the clients of its port speak.
    pub protocol: Protocol,
    /// What runs it besides calls.
    pub triggers: Vec<Trigger>,
    /// Exit after this many requests; 0 = never.
    pub max_requests: u64,
    /// End the workers after this time without a request, until the next one.
    pub idle: Option<Duration>,
    /// Settings of a fan-in.
    pub fan_in: Option<FanIn>,
    /// When traces begin, and whether spans are recorded; `None` = as the node says.
    pub trace: Option<TraceStart>,
    /// Kubernetes namespace of the pod; empty outside Kubernetes.
    pub pod_namespace: String,
    /// Id of the pod's sandbox; empty outside Kubernetes.
    pub pod: String,
    /// The given `cwasi.*` keys, which are an error on native containers.
    pub given: Vec<String>,
    /// True when there were `cwasi.*` keys at all, for whichever container of the pod.
    pub has_any: bool,
    /// Name of the container in its pod, when its role is said for all containers of the pod.
    pub shares_role: Option<String>,
    /// What may not be meant as it is written.
    pub doubts: Vec<String>,
}

impl Default for FunctionSpec {
    fn default() -> Self {
        Self {
            role: Role::Primary,
            is_library: false,
            function: None,
            workflow: String::new(),
            trust: String::new(),
            embed: Vec::new(),
            mode: ModeHint::Auto,
            allow: Vec::new(),
            concurrency: None,
            queue: QUEUE_DEFAULT,
            isolation: Isolation::Request,
            engine: None,
            is_prototype: false,
            timeout: None,
            max_payload: MAX_PAYLOAD_DEFAULT,
            memory: None,
            network: Vec::new(),
            http: HttpExposure::default(),
            protocol: Protocol::default(),
            triggers: Vec::new(),
            max_requests: 0,
            idle: None,
            fan_in: None,
            trace: None,
            pod_namespace: String::new(),
            pod: String::new(),
            given: Vec::new(),
            has_any: false,
            shares_role: None,
            doubts: Vec::new(),
        }
    }
}

impl FunctionSpec {
    /// Parses the annotations of one container.
    ///
    /// # Errors
    /// All problems.
    pub fn parse<'a>(
        annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, AnnotationError> {
        let all: BTreeMap<&str, &str> = annotations.into_iter().collect();
        let text = |key: &str| all.get(key).map_or(String::new(), |value| (*value).to_owned());
        let mut spec = Self {
            pod: text(CRI_SANDBOX_ID),
            pod_namespace: text(CRI_SANDBOX_NAMESPACE),
            has_any: all.keys().any(|key| is_ours(key)),
            ..Self::default()
        };
        if all.get(CRI_CONTAINER_TYPE) == Some(&"sandbox") {
            return Ok(spec);
        }
        let mut problems = Vec::new();
        let Values { values, shares_role, doubts } = own_values(&all, &mut problems);
        (spec.shares_role, spec.doubts) = (shares_role, doubts);
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
            "cwasi.role" if value == "library" => self.is_library = true,
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
            "cwasi.concurrency" => self.concurrency = Some(small(value, 1, CONCURRENCY_MAX)?),
            "cwasi.queue" => self.queue = small(value, 0, QUEUE_MAX)?,
            "cwasi.isolation" => self.isolation = isolation(value)?,
            "cwasi.engine" => {
                self.engine = Some(value.parse().map_err(|e: UnknownEngine| e.to_string())?);
            }
            COMPAT if value == COMPAT_PROTOTYPE => self.is_prototype = true,
            COMPAT => return Err(format!("must be {COMPAT_PROTOTYPE}: no other ABI is known")),
            "cwasi.timeout" => self.timeout = Some(values::duration(value)?),
            "cwasi.max-payload" => self.max_payload = values::size(value, PAYLOAD_MAX)?,
            "cwasi.memory" => self.memory = Some(memory(value)?),
            "cwasi.network" => self.network = network(value)?,
            "cwasi.http" => {
                let HttpExposure { gateway, port, .. } = http(value)?;
                (self.http.gateway, self.http.port) = (gateway, port);
            }
            MAX_HEAD => self.http.max_head = Some(max_head(value)?),
            IDLE_TIMEOUT => self.http.idle_timeout = Some(idle_timeout(value)?),
            PROTOCOL => self.protocol = protocol(value)?,
            TRIGGERS => self.triggers = Trigger::list(value)?,
            "cwasi.max-requests" => self.max_requests = values::number(value, 1, u64::MAX)?,
            "cwasi.idle" => self.idle = Some(values::duration(value)?),
            "cwasi.trust" => self.trust = values::name(value)?,
            "cwasi.embed" => self.embed = Embed::list(value)?,
            "cwasi.trace" => self.trace = Some(trace(value)?),
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
        if values.get("cwasi.role") == Some(&"secondary")
            && values.get("cwasi.secondary.function") == Some(&"false")
        {
            problems
                .push("cwasi.role=secondary contradicts cwasi.secondary.function=false".to_owned());
        }
        if !self.embed.is_empty() && self.workflow.is_empty() && self.trust.is_empty() {
            problems.push(
                "cwasi.embed needs cwasi.workflow or cwasi.trust: embedded modules join that group"
                    .to_owned(),
            );
        }
        for key in [FAN_IN_TIMEOUT, FAN_IN_PARTIAL] {
            if values.contains_key(key) && !values.contains_key(FAN_IN) {
                problems.push(format!("{key} needs {FAN_IN}: how many parts to wait for"));
            }
        }
        if values.contains_key(TRIGGERS) && values.contains_key(FAN_IN) {
            problems
                .push(format!("{TRIGGERS} contradicts {FAN_IN}: a trigger's message has no group"));
        }
        if self.http.max_head.is_some() && !values.contains_key("cwasi.http") {
            problems.push(format!("{MAX_HEAD} needs cwasi.http: only HTTP has heads"));
        }
        if self.http.idle_timeout.is_some() && self.http.port.is_none() {
            problems.push(format!("{IDLE_TIMEOUT} needs a port, such as cwasi.http=8080"));
        }
        if self.protocol == Protocol::Openwhisk && self.http.port.is_none() {
            problems.push(format!("{PROTOCOL}=openwhisk needs a port, such as cwasi.http=8080"));
        }
        if self.protocol == Protocol::Openwhisk && values.contains_key(FAN_IN) {
            problems.push(format!(
                "{PROTOCOL}=openwhisk contradicts {FAN_IN}: an activation has no group"
            ));
        }
        let secondary =
            self.role == Role::Secondary || values.get("cwasi.secondary.function") == Some(&"true");
        if self.isolation != Isolation::Request && !secondary {
            problems.push(format!(
                "cwasi.isolation={} needs cwasi.role=secondary: a primary runs once",
                self.isolation
            ));
        }
        if secondary && self.trace.as_ref().is_some_and(|trace| trace.parent.is_some()) {
            problems.push(
                "cwasi.trace with a trace context needs a primary: a secondary's callers give it one"
                    .to_owned(),
            );
        }
        for key in SECONDARY_ONLY.iter().filter(|key| !secondary && values.contains_key(*key)) {
            problems.push(format!("{key} needs cwasi.role=secondary: a primary is not called"));
        }
    }
}
