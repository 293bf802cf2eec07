//! What only a cluster does with a workflow and its functions: placement, scale, schedule, addresses.

use std::time::Duration;

use cwasi_config::FunctionSpec;

use super::Reader;
use super::values::{Given, given};
use crate::document::{Entry, Node};
use crate::fields::{self, FieldType};
use crate::nearest::nearest;
use crate::{EdgePlacement, GatewayName, InCluster, Ingress, PlacedEdge, Placement, Role, Scale};

/// Port of a Service, and use of CPU time in percent, unless the file says another one.
const SERVICE_PORT: u16 = 80;
const SCALE_TARGET: u32 = 80;
/// Time without calls after which the last pod ends: KEDA's own.
const COOLDOWN: Duration = Duration::from_secs(300);
/// Longest such time: KEDA counts seconds in 32 bits.
const COOLDOWN_MAX: Duration = Duration::from_secs(i32::MAX as u64);

impl Reader<'_> {
    /// The policy, whether functions may move, and edges of their own. `functions` are the names in the file.
    pub(super) fn placement(
        &mut self,
        node: &Node,
        functions: &[String],
    ) -> (Placement, bool, Vec<PlacedEdge>) {
        let fields = self.fields(node, "spec.placement", fields::PLACEMENT);
        let policy = given(&fields, "policy").map(|entry| self.policy(entry)).unwrap_or_default();
        let mut may_move = false;
        if let Some(entry) = given(&fields, "move") {
            may_move = self.flag(&entry.node, "spec.placement.move");
            if may_move && policy != Placement::Auto {
                let text = "spec.placement.move needs policy: auto: the other policies say where functions are";
                self.fault(entry.location, text);
            }
        }
        let mut edges = Vec::new();
        if let Some(entry) = given(&fields, "edges") {
            if policy == Placement::Pod {
                let text =
                    "spec.placement.edges means nothing: policy pod has one pod for all functions";
                self.fault(entry.location, text);
            }
            for entry in self.map(&entry.node, "spec.placement.edges") {
                edges.extend(self.placed_edge(entry, functions));
            }
        }
        (policy, may_move, edges)
    }

    fn placed_edge(&mut self, entry: &Entry, functions: &[String]) -> Option<PlacedEdge> {
        let path = format!("spec.placement.edges.{}", entry.key);
        let placement = match self.text(&entry.node, &path)? {
            "node" => EdgePlacement::Node,
            "spread" => EdgePlacement::Spread,
            other => {
                let text = format!("{path}: `{other}` must be node or spread");
                self.fault(entry.node.location, text);
                return None;
            }
        };
        let Some((caller, callee)) = entry.key.split_once("->") else {
            let text = format!("{path}: an edge is written as `caller->callee`");
            self.fault(entry.location, text);
            return None;
        };
        let (caller, callee) = (caller.trim().to_owned(), callee.trim().to_owned());
        for name in [&caller, &callee].into_iter().filter(|name| !functions.contains(name)) {
            let near = nearest(name, functions.iter().map(String::as_str))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let text = format!("{path}: there is no function `{name}` in this file{near}");
            self.fault(entry.location, text);
        }
        if caller == callee {
            let text = format!("{path}: an edge has two functions");
            self.fault(entry.location, text);
        }
        Some(PlacedEdge { caller, callee, placement })
    }

    fn policy(&mut self, entry: &Entry) -> Placement {
        match self.text(&entry.node, "spec.placement.policy") {
            Some("node") => Placement::Node,
            Some("pod") => Placement::Pod,
            Some("spread") => Placement::Spread,
            Some("auto") | None => Placement::Auto,
            Some(other) => {
                let text =
                    format!("spec.placement.policy: `{other}` must be auto, node, pod or spread");
                self.fault(entry.node.location, text);
                Placement::default()
            }
        }
    }

    /// A mapping that is the operator's to read.
    pub(super) fn raw(&mut self, node: &Node, path: &str) {
        let _entries = self.map(node, path);
    }

    pub(super) fn in_cluster(&mut self, fields: &Given<'_>, path: &str, role: Role) -> InCluster {
        if let Some(entry) = given(fields, "podTemplate") {
            self.raw(&entry.node, &format!("{path}.podTemplate"));
        }
        let port = given(fields, "http").and_then(|entry| port_of(&entry.node));
        let scale = given(fields, "scale").and_then(|entry| self.scale(entry, fields, path, role));
        if scale.is_some_and(|scale| scale.min == 0) {
            self.channels_need_a_pod(fields, path);
        }
        let schedule = given(fields, "schedule").and_then(|entry| self.schedule(entry, path, role));
        let service = given(fields, "service").and_then(|entry| self.service(entry, path, port));
        let ingress = given(fields, "ingress").and_then(|entry| self.ingress(entry, path, port));
        let service_port = port.map(|_| service.unwrap_or(SERVICE_PORT));
        InCluster { scale, schedule, http_port: port, service_port, ingress }
    }

    fn scale(
        &mut self,
        entry: &Entry,
        function: &Given<'_>,
        path: &str,
        role: Role,
    ) -> Option<Scale> {
        if role != Role::Secondary {
            let text = format!("{path}.scale needs role: secondary: a primary runs once");
            self.fault(entry.location, text);
        }
        if let Some(replicas) = given(function, "replicas") {
            let text = format!("{path} has both `replicas` and `scale`: keep one");
            self.fault(replicas.location, text);
        }
        let path = format!("{path}.scale");
        let fields = self.fields(&entry.node, &path, fields::SCALE);
        let mut number = |name: &str, otherwise: u32| match given(&fields, name) {
            Some(entry) => self.number(entry, &path, fields::SCALE),
            None => Some(otherwise),
        };
        let (min, max) = (number("min", 1)?, number("max", 1)?);
        let target = number("target", SCALE_TARGET)?;
        let calls = number("calls", 0)?;
        if min > max {
            let text = format!("{path}: min {min} is more than max {max}");
            self.fault(entry.location, text);
        }
        // One measure for each: CPU time says nothing of a function without a pod.
        let foreign: &[&str] = if min == 0 { &["target"] } else { &["calls", "cooldown"] };
        for name in foreign {
            if let Some(entry) = given(&fields, name) {
                let text = match min {
                    0 => format!("{path}.target is for min: 1 or more: with min: 0 use `calls`"),
                    _ => format!("{path}.{name} needs `min: 0`"),
                };
                self.fault(entry.location, text);
            }
        }
        let cooldown = match given(&fields, "cooldown") {
            Some(entry) => self.cooldown(entry, &path)?,
            None => COOLDOWN,
        };
        Some(Scale { min, max, target, calls: (calls > 0).then_some(calls), cooldown })
    }

    fn cooldown(&mut self, entry: &Entry, path: &str) -> Option<Duration> {
        let path = format!("{path}.cooldown");
        let text = self.text(&entry.node, &path)?;
        match cwasi_config::duration(text) {
            Ok(cooldown) if cooldown <= COOLDOWN_MAX => Some(cooldown),
            Ok(_) => {
                self.fault(entry.node.location, format!("{path}: {text} is too long"));
                None
            }
            Err(error) => {
                self.fault(entry.node.location, format!("{path}: `{text}` {error}"));
                None
            }
        }
    }

    fn schedule(&mut self, entry: &Entry, path: &str, role: Role) -> Option<String> {
        let path = format!("{path}.schedule");
        let text = self.filled(&entry.node, &path)?;
        if role != Role::Primary {
            let text = format!("{path} needs role: primary: a secondary runs when it is called");
            self.fault(entry.location, text);
        }
        // Kubernetes' own parser decides about the rest.
        if !text.starts_with('@') && text.split_whitespace().count() != 5 {
            let text = format!(
                "{path}: `{text}` is not a schedule of five fields such as `*/5 * * * *`, or @hourly"
            );
            self.fault(entry.node.location, text);
        }
        Some(text.to_owned())
    }

    fn service(&mut self, entry: &Entry, path: &str, port: Option<u16>) -> Option<u16> {
        self.needs_port(entry, path, port);
        let path = format!("{path}.service");
        let fields = self.fields(&entry.node, &path, fields::SERVICE);
        let port = self.number(given(&fields, "port")?, &path, fields::SERVICE)?;
        u16::try_from(port).ok()
    }

    fn ingress(&mut self, entry: &Entry, path: &str, port: Option<u16>) -> Option<Ingress> {
        self.needs_port(entry, path, port);
        let path = format!("{path}.ingress");
        let fields = self.fields(&entry.node, &path, fields::INGRESS);
        let mut text = |name: &str| {
            let entry = given(&fields, name)?;
            self.filled(&entry.node, &format!("{path}.{name}")).map(str::to_owned)
        };
        let (host, class, tls) = (text("host"), text("class"), text("tls"));
        let url_path = text("path").unwrap_or_else(|| "/".to_owned());
        if !url_path.starts_with('/') {
            self.fault(entry.location, format!("{path}.path: `{url_path}` must begin with `/`"));
        }
        if tls.is_some() && host.is_none() {
            let text = format!("{path}.tls needs `host`: a certificate is for a name");
            self.fault(entry.location, text);
        }
        let gateway = self.gateway(&fields, &path);
        Some(Ingress { host, path: url_path, class, tls, gateway })
    }

    /// The Gateway of an HTTPRoute. Class and certificates are the Gateway's.
    fn gateway(&mut self, ingress: &Given<'_>, path: &str) -> Option<GatewayName> {
        let entry = given(ingress, "gateway")?;
        let path = format!("{path}.gateway");
        let text = self.filled(&entry.node, &path)?;
        for foreign in ["class", "tls"] {
            if let Some(foreign) = given(ingress, foreign) {
                let text = format!(
                    "{path} and `{}` exclude each other: the Gateway has its own class and certificates",
                    foreign.key
                );
                self.fault(foreign.location, text);
            }
        }
        let gateway = GatewayName::parse(text);
        if gateway.is_none() {
            let text = format!("{path}: `{text}` is not NAME or NAMESPACE/NAME of a Gateway");
            self.fault(entry.node.location, text);
        }
        gateway
    }

    fn needs_port(&mut self, entry: &Entry, path: &str, port: Option<u16>) {
        if port.is_none() {
            let text =
                format!("{path}.{} needs a port of the container, such as `http: 8080`", entry.key);
            self.fault(entry.location, text);
        }
    }

    /// A whole number within its field's bounds.
    pub(super) fn number(
        &mut self,
        entry: &Entry,
        path: &str,
        known: &[fields::Field],
    ) -> Option<u32> {
        let path = format!("{path}.{}", entry.key);
        let text = self.text(&entry.node, &path)?;
        let field = known.iter().find(|field| field.name == entry.key)?;
        let FieldType::Number(min, max) = field.kind else { return None };
        let number = text.parse::<u32>().ok().filter(|it| (min..=max).contains(&u64::from(*it)));
        if number.is_none() {
            let text = format!("{path}: {text} is not a whole number from {min} to {max}");
            self.fault(entry.node.location, text);
        }
        number
    }
}

/// The port of a value of `http`, as the runtime reads it.
fn port_of(node: &Node) -> Option<u16> {
    let text = node.text()?;
    let pairs = [("cwasi.http", text), ("cwasi.role", "secondary"), ("cwasi.workflow", "w")];
    FunctionSpec::parse(pairs).ok()?.http.port
}
