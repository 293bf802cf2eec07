//! Services: backends that functions need, such as a database. They are native containers, not functions.
//!
//! A function that names a service in `uses` gets its address as environment variables, and may reach it
//! (`cwasi.network`). Where the address is depends on the place: [`Workflow::connect`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::document::{Location, Problem};
use crate::{Function, Workflow};

/// Address of a service in the network that it shares with its users.
pub const SHARED_HOST: &str = "127.0.0.1";
/// The annotation with the destinations of a function.
const NETWORK: &str = "cwasi.network";

/// A backend that functions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    /// Where the file has it.
    pub location: Location,
    pub image: String,
    pub port: u16,
    /// Program and first arguments; empty = as the image says.
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// `None` = as the image says.
    pub user: Option<User>,
    pub host_network: bool,
    pub health: Health,
    pub storage: Option<Storage>,
    /// An address at which it runs already: nothing is started then.
    pub external: Option<Address>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub check: HealthCheck,
    /// Longest time until the service is ready.
    pub timeout: Duration,
}

/// When a service is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// Its port takes connections.
    Port,
    /// A GET request of this path is answered with a status from 200 to 399.
    Http(String),
    /// This program ends with 0 in its container.
    Command(Vec<String>),
}

/// A folder that outlives the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Path in the container.
    pub path: PathBuf,
    /// Bytes that a cluster reserves.
    pub size: u64,
    /// Kind of a cluster's storage; `None` = the default.
    pub class: Option<String>,
}

/// Host and port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("{text} is not an address such as db.example:5432 or [::1]:5432");
        let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(problem)?;
        let is_name = |host: &str| {
            let inside =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !host.is_empty() && host.bytes().all(inside)
        };
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => inner,
            None if is_name(host) => host,
            Some(_) | None => return Err(problem()),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl Service {
    /// Names of the variables with its host and port, as Kubernetes has them for a Service.
    #[must_use]
    pub fn variables(&self) -> [String; 2] {
        let name = self.name.to_ascii_uppercase().replace('-', "_");
        ["HOST", "PORT"].map(|part| format!("{name}_SERVICE_{part}"))
    }

    /// True if a container of it is started where it is used.
    #[must_use]
    pub const fn is_started(&self) -> bool {
        self.external.is_none()
    }
}

impl Workflow {
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }

    /// The functions that use a service.
    pub fn users_of<'a>(&'a self, service: &'a str) -> impl Iterator<Item = &'a Function> {
        let uses = move |function: &&Function| function.uses.iter().any(|name| name == service);
        self.functions.iter().filter(uses)
    }

    /// The services that a function uses. The others are never started.
    pub fn used_services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| self.users_of(&service.name).next().is_some())
    }

    /// True if the function shares a network with services that are started beside it.
    #[must_use]
    pub fn shares_network(&self, function: &Function) -> bool {
        let mut services = function.uses.iter().filter_map(|name| self.service(name));
        !function.host_network && services.any(Service::is_started)
    }

    /// Gives each function the addresses of the services that it uses: as variables, of which its own win, and as
    /// destinations of its sockets.
    pub fn connect(&mut self, address_of: impl Fn(&Service) -> Address) {
        let services: BTreeMap<&str, (&Service, Address)> = self
            .services
            .iter()
            .map(|service| (service.name.as_str(), (service, address_of(service))))
            .collect();
        for function in &mut self.functions {
            for (service, address) in
                function.uses.iter().filter_map(|name| services.get(name.as_str()))
            {
                let values = [address.host.clone(), address.port.to_string()];
                for (key, value) in service.variables().into_iter().zip(values) {
                    if !function.env.iter().any(|(own, _)| *own == key) {
                        function.env.push((key, value));
                    }
                }
                let allowed = function.annotations.entry(NETWORK.to_owned()).or_default();
                let address = address.to_string();
                if !allowed.split(',').any(|entry| entry.trim() == address) {
                    let comma = if allowed.is_empty() { "" } else { "," };
                    allowed.push_str(comma);
                    allowed.push_str(&address);
                }
            }
        }
    }

    /// What keeps functions and their services from one network, where services are started beside them: as
    /// containers of a machine, or in one pod.
    #[must_use]
    pub fn network_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for service in &self.services {
            let users = || self.users_of(&service.name);
            problems.extend(users().filter_map(|user| mixed_networks(service, user)));
            let mut nodes: Vec<_> = users().map(|user| user.node.as_deref()).collect();
            nodes.sort_unstable();
            nodes.dedup();
            if nodes.len() > 1 && service.is_started() {
                let nodes = nodes.into_iter().map(|node| node.unwrap_or("the command line's"));
                let text = format!(
                    "service {name}: its users are on several nodes ({nodes}), and it runs on one: put them on one node, or \
                     name an address that all of them reach with --service {name}=HOST:PORT",
                    name = service.name,
                    nodes = nodes.collect::<Vec<_>>().join(", ")
                );
                problems.push(Problem::new(service.location, text));
            }
        }
        problems.extend(self.port_problems());
        problems
    }

    /// Ports that two containers of one network have, where services are started beside functions.
    fn port_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        // By network: the node's or the shared one, and which node.
        let mut taken: BTreeMap<(bool, Option<&str>, u16), String> = BTreeMap::new();
        for service in self.used_services().filter(|service| service.is_started()) {
            let node = self.users_of(&service.name).find_map(|user| user.node.as_deref());
            let (owner, port) = (format!("service {}", service.name), service.port);
            if let Some(other) = taken.get(&(service.host_network, node, port)) {
                let text = format!(
                    "{owner}: {other} has the port {port} in the network that both share: let one of them listen on another \
                     one, and say so in its `port`"
                );
                problems.push(Problem::new(service.location, text));
            }
            taken.insert((service.host_network, node, port), owner);
        }
        for function in self.functions.iter().filter(|it| self.shares_network(it)) {
            let Some(port) = function.cluster.http_port else { continue };
            let owner = format!("function {}", function.name);
            let network = (false, function.node.as_deref(), port);
            if let Some(other) = taken.get(&network) {
                let text = format!(
                    "{owner}: {other} has the port {port} in the network that both share: choose another one in `http`"
                );
                problems.push(Problem::new(function.location, text));
            }
            if function.replicas > 1 {
                let text = format!(
                    "{owner}: its {} containers share a network with services, and only one of them can have the port {port}: \
                     keep one of `replicas` and `http: {port}`",
                    function.replicas
                );
                problems.push(Problem::new(function.location, text));
            }
            taken.insert(network, owner);
        }
        problems
    }
}

/// A service and a user of it that are in different networks.
fn mixed_networks(service: &Service, user: &Function) -> Option<Problem> {
    let (name, function) = (&service.name, &user.name);
    let text = match (&service.external, service.host_network, user.host_network) {
        (Some(address), _, false) => format!(
            "function {function}: service {name} is at {address}, and the function's container has no network but \
             127.0.0.1: set spec.functions.{function}.hostNetwork: true"
        ),
        (None, true, false) => format!(
            "function {function}: service {name} has the node's network, and the function does not: set hostNetwork \
             for both, or for none"
        ),
        (None, false, true) => format!(
            "function {function}: it has the node's network, and service {name} does not: set hostNetwork for both, \
             or for none"
        ),
        _ => return None,
    };
    Some(Problem::new(user.location, text))
}

#[cfg(test)]
#[path = "services/tests.rs"]
mod tests;
