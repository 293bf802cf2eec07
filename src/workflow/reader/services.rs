//! Services, and the functions that use them.

use std::time::Duration;

use super::Reader;
use super::values::{Given, given};
use crate::document::{Entry, Location, Node, Problem};
use crate::fields::services::{HEALTH, SERVICE, STORAGE};
use crate::nearest::nearest;
use crate::services::{Address, Health, HealthCheck, Service, Storage, User};

/// Most services of one workflow.
const SERVICES_MAX: usize = 64;
/// Time until a service is ready, unless the file says another one, and the longest one.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(60);
const HEALTH_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Size of a storage, unless the file says another one, and the largest one.
const STORAGE_SIZE: u64 = 1 << 30;
const STORAGE_SIZE_MAX: u64 = 1 << 60;

impl Reader<'_> {
    /// The services. `functions` are the functions' names.
    pub(super) fn services(&mut self, node: &Node, functions: &[String]) -> Vec<Service> {
        let entries = self.map(node, "spec.services");
        if entries.len() > SERVICES_MAX {
            let text = format!("spec.services has more than {SERVICES_MAX} services");
            self.fault(node.location, text);
        }
        let mut services = Vec::new();
        for entry in entries {
            let path = format!("spec.services.{}", entry.key);
            if functions.contains(&entry.key) {
                let text = format!("{path}: a function has this name: rename one of them");
                self.fault(entry.location, text);
            } else if !is_label(&entry.key) {
                let text = format!(
                    "{path}: `{}` is not the name of a service: use lower-case letters, digits and `-`, first a letter, last \
                     no `-`, at most 63",
                    entry.key
                );
                self.fault(entry.location, text);
            }
            services.extend(self.service_of(entry, &path));
        }
        services
    }

    fn service_of(&mut self, entry: &Entry, path: &str) -> Option<Service> {
        let fields = self.fields(&entry.node, path, SERVICE);
        let field = |name: &str| given(&fields, name);
        let image = field("image")
            .and_then(|entry| self.filled(&entry.node, &format!("{path}.image")))
            .map(str::to_owned);
        let port = field("port").and_then(|entry| self.number(entry, path, SERVICE));
        let mut list = |name: &str| {
            let entry = field(name)?;
            Some(self.args(&entry.node, &format!("{path}.{name}")))
        };
        let (command, args) = (list("command"), list("args"));
        let env = field("env").map(|entry| self.env(&entry.node, &format!("{path}.env")));
        let user = field("user").and_then(|entry| self.user(entry, path));
        let host_network = field("hostNetwork")
            .is_some_and(|entry| self.flag(&entry.node, &format!("{path}.hostNetwork")));
        let health = self.health(field("health"), path);
        let storage = field("storage").and_then(|entry| self.storage(entry, path));
        if let Some(entry) = field("podTemplate") {
            self.raw(&entry.node, &format!("{path}.podTemplate"));
        }
        Some(Service {
            name: entry.key.clone(),
            location: entry.location,
            image: image?,
            port: u16::try_from(port?).ok()?,
            command: command.unwrap_or_default(),
            args: args.unwrap_or_default(),
            env: env.unwrap_or_default(),
            user,
            host_network,
            health,
            storage,
            external: None,
        })
    }

    fn user(&mut self, entry: &Entry, path: &str) -> Option<User> {
        let text = self.text(&entry.node, &format!("{path}.user"))?;
        let (uid, gid) = text.split_once(':').unwrap_or((text, "0"));
        let user = uid.parse().ok().zip(gid.parse().ok()).map(|(uid, gid)| User { uid, gid });
        if user.is_none() {
            let text =
                format!("{path}.user: `{text}` is not `UID` or `UID:GID`, such as \"999:999\"");
            self.fault(entry.node.location, text);
        }
        user
    }

    fn health(&mut self, entry: Option<&Entry>, path: &str) -> Health {
        let by_port = Health { check: HealthCheck::Port, timeout: HEALTH_TIMEOUT };
        let Some(entry) = entry else { return by_port };
        let path = format!("{path}.health");
        let fields = self.fields(&entry.node, &path, HEALTH);
        let timeout = given(&fields, "timeout").and_then(|entry| self.health_timeout(entry, &path));
        let check = self.health_check(&fields, &path);
        Health {
            check: check.unwrap_or(by_port.check),
            timeout: timeout.unwrap_or(by_port.timeout),
        }
    }

    fn health_check(&mut self, fields: &Given<'_>, path: &str) -> Option<HealthCheck> {
        match (given(fields, "command"), given(fields, "http")) {
            (Some(command), None) => {
                let words = self.args(&command.node, &format!("{path}.command"));
                if words.is_empty() {
                    let text = format!(
                        "{path}.command names no program: write a list such as [redis-cli, ping]"
                    );
                    self.fault(command.location, text);
                }
                Some(HealthCheck::Command(words))
            }
            (None, Some(http)) => {
                let text = self.text(&http.node, &format!("{path}.http"))?;
                let is_path =
                    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
                if !is_path {
                    let text = format!("{path}.http: `{text}` is not a path such as /healthz");
                    self.fault(http.node.location, text);
                }
                Some(HealthCheck::Http(text.to_owned()))
            }
            (Some(_), Some(http)) => {
                self.fault(
                    http.location,
                    format!("{path} has both `command` and `http`: keep one"),
                );
                None
            }
            (None, None) => None,
        }
    }

    fn health_timeout(&mut self, entry: &Entry, path: &str) -> Option<Duration> {
        let path = format!("{path}.timeout");
        let text = self.text(&entry.node, &path)?;
        let problem = match cwasi_config::duration(text) {
            Ok(timeout) if timeout <= HEALTH_TIMEOUT_MAX => return Some(timeout),
            Ok(_) => "is longer than 1h".to_owned(),
            Err(error) => error,
        };
        self.fault(entry.node.location, format!("{path}: {text} {problem}"));
        None
    }

    fn storage(&mut self, entry: &Entry, path: &str) -> Option<Storage> {
        let path = format!("{path}.storage");
        let fields = self.fields(&entry.node, &path, STORAGE);
        let folder = given(&fields, "path")
            .and_then(|entry| self.folder_of(&entry.node, &format!("{path}.path")));
        let size = given(&fields, "size").map_or(Some(STORAGE_SIZE), |entry| {
            let text = self.text(&entry.node, &format!("{path}.size"))?;
            cwasi_config::size(text, STORAGE_SIZE_MAX)
                .map_err(|problem| {
                    self.fault(entry.node.location, format!("{path}.size: {text} {problem}"))
                })
                .ok()
        });
        let class = given(&fields, "class")
            .and_then(|entry| self.filled(&entry.node, &format!("{path}.class")))
            .map(str::to_owned);
        Some(Storage { path: folder?, size: size?, class })
    }

    /// The services that a function names. `services` and `functions` are the names in the file.
    pub(super) fn uses(
        &mut self,
        function: &Entry,
        functions: &[&str],
        services: &[String],
    ) -> Vec<String> {
        let Some(entry) = function.node.entry("uses") else { return Vec::new() };
        let path = format!("spec.functions.{}.uses", function.key);
        let uses = self.args(&entry.node, &path);
        let mut seen = Vec::new();
        for name in &uses {
            let problem = if functions.contains(&name.as_str()) {
                format!("`{name}` is a function, which is called without `uses`")
            } else if !services.contains(name) {
                let near = nearest(name, services.iter().map(String::as_str))
                    .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                format!("spec.services has no `{name}`{near}")
            } else if seen.contains(&name) {
                format!("`{name}` is there twice")
            } else {
                seen.push(name);
                continue;
            };
            self.fault(entry.node.location, format!("{path}: {problem}"));
        }
        uses
    }

    /// Gives services the addresses of the command line.
    pub(super) fn addresses(&mut self, services: &mut [Service], addresses: &[(String, Address)]) {
        for (name, address) in addresses {
            if let Some(service) = services.iter_mut().find(|service| service.name == *name) {
                service.external = Some(address.clone());
                continue;
            }
            let near = nearest(name, services.iter().map(|service| service.name.as_str()))
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let text = format!("--service {name}: spec.services has no `{name}`{near}");
            self.problems.push(Problem::new(Location::CommandLine, text));
        }
    }
}

/// A name that Kubernetes takes for a Service, and of which variables can be made.
fn is_label(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 63
        && name.bytes().all(inside)
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && !name.ends_with('-')
}
