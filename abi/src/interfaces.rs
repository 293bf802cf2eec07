//! The interfaces of the component model that a component may import from the host, and those by which it is called.
//!
//! A name in a component has a version: `wasi:cli/run@0.2.6`. Versions that differ only in their last number are
//! compatible, as the component model's linkers have it.

/// A component's export for requests: bytes in, bytes out.
pub const HANDLER: Interface = Interface { name: "cwasi:function/handler", version: CWASI };
/// A component's export for requests: payloads in, payloads out.
pub const PAYLOAD_HANDLER: Interface =
    Interface { name: "cwasi:function/payload-handler", version: CWASI };
/// A component's export for groups (`cwasi.fan-in`).
pub const GROUP_HANDLER: Interface =
    Interface { name: "cwasi:function/group-handler", version: CWASI };
/// A component's export for HTTP requests; a call by name is one, too.
pub const INCOMING_HANDLER: Interface =
    Interface { name: "wasi:http/incoming-handler", version: WASI };
/// A component's import for HTTP requests of its own.
pub const OUTGOING_HANDLER: Interface =
    Interface { name: "wasi:http/outgoing-handler", version: WASI };
/// A component's export as a command.
pub const RUN: Interface = Interface { name: "wasi:cli/run", version: WASI };
/// The function of each of [`HANDLERS`].
pub const HANDLE_FUNCTION: &str = "handle";
/// The function of [`RUN`].
pub const RUN_FUNCTION: &str = "run";

/// The exports by which requests can come.
pub const HANDLERS: [Interface; 4] = [HANDLER, PAYLOAD_HANDLER, GROUP_HANDLER, INCOMING_HANDLER];

/// Those of ours, whose requests are calls.
pub const FUNCTIONS: [Interface; 3] = [HANDLER, PAYLOAD_HANDLER, GROUP_HANDLER];

const CWASI: &str = "0.1.";
const WASI: &str = "0.2.";

/// An interface in all its compatible versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Package and name.
    pub name: &'static str,
    /// Beginning of its versions.
    version: &'static str,
}

impl Interface {
    /// True if `export`, with its version, is this interface.
    #[must_use]
    pub fn is(self, export: &str) -> bool {
        matches!(export.split_once('@'), Some((name, version))
            if name == self.name && version.starts_with(self.version))
    }
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
/// Packages of WASI 0.2.
const PACKAGES: [&str; 5] = ["cli", "clocks", "filesystem", "io", "random"];

/// Who serves the import `name`; `None` if this host does not.
#[must_use]
pub fn served_by(name: &str) -> Option<Server> {
    let (package, rest) = name.split_once('/')?;
    let (interface, version) = rest.split_once('@')?;
    match package.split_once(':')? {
        ("cwasi", "calls") if CALLS.contains(&interface) && version.starts_with(CWASI) => {
            Some(Server::Runtime)
        }
        ("wasi", "sockets") if version.starts_with(WASI) => Some(Server::Network),
        _ if OUTGOING_HANDLER.is(name) => Some(Server::Network),
        ("wasi", "http") if interface == "types" && version.starts_with(WASI) => Some(Server::Wasi),
        ("wasi", package) if PACKAGES.contains(&package) && version.starts_with(WASI) => {
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
        assert!(!RUN.is("wasi:cli/run@0.3.0") && !RUN.is("wasi:cli/run"));
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
            ("cwasi:calls/later@0.1.0", None),
            ("wasi:cli/environment@0.3.0", None),
            ("wasi:keyvalue/store@0.2.0", None),
            ("math:add/add@0.1.0", None),
            ("print", None),
        ] {
            assert_eq!(served_by(name), server, "{name}");
        }
    }
}
