//! The interfaces of the component model that a component may import from the host, and those by which it is called.
//!
//! A name in a component has a version: `wasi:cli/run@0.2.6`. Versions that differ only in their last number are
//! compatible, as the component model's linkers have it; a release candidate is compatible with nothing.

/// A component's export for requests: bytes in, bytes out.
pub const HANDLER: Interface = Interface { name: "cwasi:function/handler", versions: CWASI };
/// A component's export for requests: payloads in, payloads out.
pub const PAYLOAD_HANDLER: Interface =
    Interface { name: "cwasi:function/payload-handler", versions: CWASI };
/// A component's export for groups (`cwasi.fan-in`).
pub const GROUP_HANDLER: Interface =
    Interface { name: "cwasi:function/group-handler", versions: CWASI };
/// A component's export for HTTP requests; a call by name is one, too.
pub const INCOMING_HANDLER: Interface =
    Interface { name: "wasi:http/incoming-handler", versions: WASI_2 };
/// The same in WASI 0.3.
pub const HTTP_HANDLER: Interface = Interface { name: "wasi:http/handler", versions: WASI_3 };
/// A component's import for HTTP requests of its own.
pub const OUTGOING_HANDLER: Interface =
    Interface { name: "wasi:http/outgoing-handler", versions: WASI_2 };
/// The same in WASI 0.3.
pub const HTTP_CLIENT: Interface = Interface { name: "wasi:http/client", versions: WASI_3 };
/// A component's export as a command.
pub const RUN: Interface = Interface { name: "wasi:cli/run", versions: WASI };
/// The function of each of [`HANDLERS`].
pub const HANDLE_FUNCTION: &str = "handle";
/// The function of [`RUN`].
pub const RUN_FUNCTION: &str = "run";

/// The exports by which requests can come.
pub const HANDLERS: [Interface; 5] =
    [HANDLER, PAYLOAD_HANDLER, GROUP_HANDLER, INCOMING_HANDLER, HTTP_HANDLER];

/// Those of ours, whose requests are calls.
pub const FUNCTIONS: [Interface; 3] = [HANDLER, PAYLOAD_HANDLER, GROUP_HANDLER];

const CWASI: &[&str] = &["0.1."];
const WASI: &[&str] = &["0.2.", "0.3."];
const WASI_2: &[&str] = &["0.2."];
const WASI_3: &[&str] = &["0.3."];

/// An interface in all its compatible versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Package and name.
    pub name: &'static str,
    /// Beginnings of its versions.
    versions: &'static [&'static str],
}

impl Interface {
    /// True if `export`, with its version, is this interface.
    #[must_use]
    pub fn is(self, export: &str) -> bool {
        matches!(export.split_once('@'), Some((name, version))
            if name == self.name && is_of(version, self.versions))
    }
}

/// True if `version` is one of these beginnings and a number.
fn is_of(version: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| {
        version.strip_prefix(beginning).is_some_and(|last| last.parse::<u32>().is_ok())
    })
}

/// True for an interface of WASI 0.3, whose functions may be asynchronous.
#[must_use]
pub fn is_wasi_3(name: &str) -> bool {
    name.starts_with("wasi:")
        && name.split_once('@').is_some_and(|(_, version)| is_of(version, WASI_3))
}

/// Who serves an import of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The runtime: calls of functions.
    Runtime,
    /// WASI.
    Wasi,
    /// WASI, if `cwasi.network` allows a destination; refused otherwise.
    Network,
}

/// Interfaces of `cwasi:calls`.
const CALLS: [&str; 4] = ["types", "streams", "calls", "context"];
/// Packages of WASI 0.2 and 0.3.
const PACKAGES: [&str; 4] = ["cli", "clocks", "filesystem", "random"];

/// Who serves the import `name`; `None` if this host does not.
#[must_use]
pub fn served_by(name: &str) -> Option<Server> {
    let (package, rest) = name.split_once('/')?;
    let (interface, version) = rest.split_once('@')?;
    match package.split_once(':')? {
        ("cwasi", "calls") if CALLS.contains(&interface) && is_of(version, CWASI) => {
            Some(Server::Runtime)
        }
        ("wasi", "sockets") if is_of(version, WASI) => Some(Server::Network),
        _ if OUTGOING_HANDLER.is(name) || HTTP_CLIENT.is(name) => Some(Server::Network),
        ("wasi", "http") if interface == "types" && is_of(version, WASI) => Some(Server::Wasi),
        // Streams are types of their own in WASI 0.3.
        ("wasi", "io") if is_of(version, WASI_2) => Some(Server::Wasi),
        ("wasi", package) if PACKAGES.contains(&package) && is_of(version, WASI) => {
            Some(Server::Wasi)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_but_for_the_last_number() {
        assert!(RUN.is("wasi:cli/run@0.2.0") && RUN.is("wasi:cli/run@0.2.6"));
        assert!(RUN.is("wasi:cli/run@0.3.0") && RUN.is("wasi:cli/run@0.3.12"));
        for other in ["wasi:cli/run", "wasi:cli/run@0.4.0", "wasi:cli/run@0.3.0-rc-2026-03-15"] {
            assert!(!RUN.is(other), "{other}");
        }
        assert!(is_wasi_3("wasi:random/random@0.3.2") && !is_wasi_3("wasi:random/random@0.2.3"));
        assert!(!is_wasi_3("math:add/add@0.3.0"));
        assert!(HANDLER.is("cwasi:function/handler@0.1.0"));
    }

    #[test]
    fn every_import_has_a_server_or_none() {
        for (name, server) in [
            ("wasi:io/streams@0.2.6", Some(Server::Wasi)),
            ("wasi:sockets/tcp@0.2.0", Some(Server::Network)),
            ("cwasi:calls/calls@0.1.0", Some(Server::Runtime)),
            ("wasi:http/types@0.2.0", Some(Server::Wasi)),
            ("wasi:http/outgoing-handler@0.2.6", Some(Server::Network)),
            ("wasi:http/outgoing-handler@0.3.0", None),
            ("wasi:http/types@0.3.2", Some(Server::Wasi)),
            ("wasi:http/client@0.3.2", Some(Server::Network)),
            ("wasi:http/client@0.2.6", None),
            ("wasi:http/handler@0.3.2", None),
            ("wasi:sockets/types@0.3.0", Some(Server::Network)),
            ("wasi:io/streams@0.3.0", None),
            ("cwasi:calls/later@0.1.0", None),
            ("wasi:cli/environment@0.3.0", Some(Server::Wasi)),
            ("wasi:cli/environment@0.3.0-rc-2026-03-15", None),
            ("wasi:cli/environment@0.4.0", None),
            ("wasi:keyvalue/store@0.2.0", None),
            ("math:add/add@0.1.0", None),
            ("print", None),
        ] {
            assert_eq!(served_by(name), server, "{name}");
        }
    }
}
