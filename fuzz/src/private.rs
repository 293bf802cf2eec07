//! Decoders in the shape that the targets need.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use oci_spec::runtime::Spec;

use cwasi_config::{CompileConfig, FunctionSpec};
use cwasi_coordinator::fingerprint;
use cwasi_coordinator::{bundle, limits};
use cwasi_modes::local::incoming::{
    CallerConnection, ConnectionId, IncomingRequest, ParsedMessage,
};
use cwasi_modes::{CallError, Payload};
use cwasi_shim::cgroups;
use cwasi_shim::session::Stat;
use cwasi_vm::sockets::dns::{self, Reading, RecordKind};
use cwasi_vm::sockets::names::{self, Servers};
use cwasi_vm::{linked_calls, state};
use cwasi_wire::control::Files;
use cwasi_wire::egress::{Egress, EgressEntry};
use cwasi_wire::envelope::Request;
use cwasi_wire::ids::CallId;

/// What a message of a caller is.
pub enum Opened {
    /// A request.
    Request(CallId, Request, Payload),
    /// One that its caller gets as an error.
    Refused(CallId, CallError),
    /// Nothing that may come there.
    Fault,
}

/// `modes::local::incoming::CallerConnection::open`
pub fn open_request(message: &[u8], fds: Vec<OwnedFd>, lends: bool, max_payload: u64) -> Opened {
    // Nothing is sent over it.
    let fd = OwnedFd::from(File::open("/dev/null").expect("every system has it"));
    let (id, fd, caller) = (ConnectionId(1), Rc::new(fd), "caller".to_owned());
    match (CallerConnection { id, fd, caller, lends }).open(message, fds, max_payload) {
        Ok(ParsedMessage::Request(incoming)) => {
            let IncomingRequest { id, request, payload, .. } = *incoming;
            Opened::Request(id, request, payload)
        }
        Ok(ParsedMessage::Refused { id, error, .. }) => Opened::Refused(id, error),
        Err(_) => Opened::Fault,
    }
}

/// True when `coordinator::limits` lets a module pass.
pub fn is_within(wasm: &[u8], limits: &CompileConfig) -> bool {
    limits::check(wasm, limits).is_ok()
}

/// `coordinator::bundle::function_name`
pub fn function_name(annotations: &FunctionSpec, command: &str) -> Option<String> {
    bundle::function_name(annotations, command).ok()
}

/// `coordinator::bundle::args`
pub fn args(spec: &Spec) -> &[String] {
    bundle::args(spec)
}

/// What else `coordinator::bundle` reads.
pub fn surroundings(
    spec: &Spec,
    network: Vec<EgressEntry>,
) -> (Option<u64>, Option<Egress>, Vec<PathBuf>, Files) {
    let egress = bundle::egress(spec, network);
    (bundle::memory_limit(spec), egress, bundle::preopens(spec), bundle::files(spec))
}

/// `shim::cgroups`: directories that a process is in, one of them with roots, and those that will be made at `path`.
pub fn cgroups(
    membership: &str,
    mountinfo: &str,
    path: &Path,
) -> (Vec<PathBuf>, Option<PathBuf>, Vec<PathBuf>) {
    let own = cgroups::own(membership, mountinfo);
    (cgroups::parse(membership, mountinfo), own, cgroups::planned(path, mountinfo))
}

/// `shim::session::Stat::parse`
pub fn stat(text: &str) -> Option<Stat> {
    Stat::parse(text)
}

/// `coordinator::fingerprint::features`
pub fn features(cpuinfo: &str) -> String {
    fingerprint::features(cpuinfo)
}

/// Addresses in a message of a name server; `None` when it has none that count.
pub fn dns_answer(bytes: &[u8], id: u16, name: &str, kind: RecordKind) -> Option<Vec<IpAddr>> {
    match dns::read(bytes, id, name, kind) {
        Reading::Answer(dns::DnsAnswer::Addresses(addresses)) => Some(addresses),
        _ => None,
    }
}

/// `vm::sockets::names`: addresses of a name in a file of hosts; servers of a `resolv.conf`, and what they are asked
/// for.
pub fn names(hosts: &str, servers: &str, name: &str) -> (Vec<IpAddr>, Vec<IpAddr>, Vec<String>) {
    let servers = Servers::read(servers);
    let candidates = servers.candidates(name);
    (names::in_hosts(hosts, name), servers.addresses, candidates)
}

/// `vm::linked_calls::wrap`
pub fn wrap(wasm: &[u8]) -> Option<Vec<u8>> {
    linked_calls::wrap(wasm)
}

/// `vm::state::expose`
pub fn expose(wasm: &[u8]) -> Result<Option<Vec<u8>>, state::ReservedName> {
    state::expose(wasm)
}
