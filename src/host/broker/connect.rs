//! Connects to receivers on this host and introduces the caller. Runs where [`super::Resolver`] does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cwasi_abi::Errno;

use super::{BrokerPeer, CallerKind, REPLY_MAX};
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::{Member, may_lend};
use cwasi_sys::clock::Deadline;
use cwasi_sys::seqpacket::{self, SocketError};
use cwasi_wire::control::ResolveReply;
use cwasi_wire::envelope::Hello;
use cwasi_wire::frame::{PayloadRef, encode_head};
use cwasi_wire::ids::Identity;

fn member(record: &Record) -> Member<'_> {
    Member { identity: &record.identity, workflow: &record.workflow, trust: &record.trust }
}

/// Connects to the first candidate that accepts. Refusing candidates join `avoid`; the error is theirs.
pub(super) fn connect_first(
    peer: &BrokerPeer,
    callee: &Identity,
    candidates: &[&Record],
    (reason, instances): (String, usize),
    avoid: &mut Vec<String>,
) -> Result<(ResolveReply, OwnedFd), (Errno, String)> {
    let mut full = false;
    for record in candidates {
        let lends = peer.kind != CallerKind::Sandbox || may_lend(peer.member(), member(record));
        match connect(peer, &record.socket, lends) {
            Ok(connection) => {
                let instance = record.instance.clone();
                let (max_payload, max_head) = (record.max_payload, record.max_head);
                let nearest = peer.group.is_empty() || peer.group == record.group;
                let reply = ResolveReply::Local {
                    instance,
                    reason,
                    max_payload,
                    max_head,
                    instances,
                    nearest,
                    lends,
                };
                return Ok((reply, connection));
            }
            Err(SocketError::Deadline) => full = true,
            Err(error) => {
                let (instance, container) = (&record.instance, &record.container);
                tracing::debug!(%callee, instance, container, %error, "instance does not answer");
            }
        }
        if !avoid.contains(&record.instance) {
            avoid.push(record.instance.clone());
        }
    }
    let (errno, what) = if full {
        (Errno::Overloaded, "have no room for another caller")
    } else {
        (Errno::Unreachable, "do not answer")
    };
    Err((errno, format!("the {} instances of {callee} on this host {what}", candidates.len())))
}

/// Connects to a receiver and sends the hello.
fn connect(peer: &BrokerPeer, receiver: &Path, lends: bool) -> Result<OwnedFd, SocketError> {
    let connection = seqpacket::connect_to(receiver)?;
    let hello = Hello::of(&peer.identity, &peer.workflow, &peer.instance).lending(lends);
    let head = encode_head(&hello, PayloadRef::Inline(&[])).map_err(|error| SocketError::Os {
        operation: "hello",
        source: std::io::Error::other(error),
    })?;
    seqpacket::send(connection.as_fd(), &[&head], &[], Some(Deadline::after(REPLY_MAX)))?;
    Ok(connection)
}
