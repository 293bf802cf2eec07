//! Log lines about refused socket calls, with the entry for `cwasi.network` that would allow them. Runs in a worker.
//!
//! A guest sees only an errno. Each line appears once per function, over all workers, and there are at most
//! [`LINES_MAX`], so that a guest cannot fill the log.
//!
//! Invariant: a line contains no text of the guest. Names are host names, everything else is a number.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;

use cwasi_sys::counter::SharedCounters;
use cwasi_wire::egress::RESOLVER_FILE;

/// Most lines of one function, the final one included.
pub const LINES_MAX: usize = 32;

/// Writes a line to the function's log.
pub type WriteLine = fn(&str);

/// A refused request of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusedAccess<'a> {
    /// To connect or send to an address.
    Destination(SocketAddr),
    /// To reach an address that an entry with `!` names.
    Denied(SocketAddr),
    /// To look up a name.
    Name(&'a str),
    /// To look up a name when there is no name server.
    NoServers(&'a str),
    /// A name server's address for a name.
    Special(&'a str, IpAddr),
    /// To send an HTTP request to a host and port.
    Request(&'a str, u16),
    /// To send an HTTP request to an address.
    RequestToAddress(SocketAddr),
    /// To verify a server of HTTPS, without certificates; the files that have none.
    NoCertificates(&'static [&'static str]),
    Listening,
    /// To bind a socket to an address of its choice.
    Binding(SocketAddr),
    SocketOption(&'static str),
}

impl fmt::Display for RefusedAccess<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(to) => write!(
                f,
                "a socket to {to} was refused, because cwasi.network does not allow it. Add `{to}` to this annotation, \
                 or the host's name and port if the function looks the name up"
            ),
            Self::Denied(to) => write!(
                f,
                "a connection to {to} was refused, because an entry of cwasi.network with `!` denies it"
            ),
            Self::Name(name) => write!(
                f,
                "the look-up of {name} was refused, because cwasi.network does not allow this name. Add `{name}:PORT` \
                 to this annotation"
            ),
            Self::NoServers(name) => write!(
                f,
                "the look-up of {name} failed, because the container has no name server: mount a {RESOLVER_FILE} with \
                 one. The image's own file does not count"
            ),
            Self::Special(name, address) => write!(
                f,
                "a name server's answer {address} for {name} was ignored, because it is a special address. To allow it, \
                 add it to cwasi.network as an address, or mount an /etc/hosts with the name"
            ),
            Self::Request(name, port) => write!(
                f,
                "an HTTP request to {name}:{port} was refused, because cwasi.network does not allow it. Add \
                 `{name}:{port}` to this annotation"
            ),
            Self::RequestToAddress(to) => write!(
                f,
                "an HTTP request to {to} was refused, because cwasi.network does not allow it. Add `{to}` to this \
                 annotation"
            ),
            Self::NoCertificates(files) => write!(
                f,
                "an HTTPS request failed, because neither the container nor the node has certificates of authorities: \
                 put them into the image, or mount a file with them, as one of {}",
                files.join(", ")
            ),
            Self::Listening => f.write_str(
                "listening was refused: a function is called through the runtime (cwasi.role=secondary), not over a \
                 socket",
            ),
            Self::Binding(address) => write!(
                f,
                "binding a socket to {address} was refused: functions can bind to port 0 of the unspecified address only"
            ),
            Self::SocketOption(name) => write!(
                f,
                "the socket option {name} was refused: docs/annotations.md lists the options that a function can set"
            ),
        }
    }
}

/// Logged refusals, shared by all processes that are forked from this one.
#[derive(Debug)]
pub struct Refusals {
    /// A digest of each refusal; 0 = free.
    logged: SharedCounters<LINES_MAX>,
    write: Option<WriteLine>,
}

impl Refusals {
    /// No refusals yet. Without `write` nothing is logged.
    ///
    /// # Errors
    /// When memory or mappings run out.
    pub fn new(write: Option<WriteLine>) -> io::Result<Self> {
        Ok(Self { logged: SharedCounters::new()?, write })
    }

    /// Writes a line, unless it was written before or the limit is reached.
    pub fn log(&self, refusal: RefusedAccess<'_>) {
        let Some(write) = self.write else { return };
        match self.take_slot(refusal) {
            None => {}
            Some(last) if last + 1 == LINES_MAX => {
                write("further refusals of this function's sockets are not logged any more");
            }
            Some(_) => write(&refusal.to_string()),
        }
    }

    /// A free slot for a new refusal.
    fn take_slot(&self, refusal: RefusedAccess<'_>) -> Option<usize> {
        let mut hasher = DefaultHasher::new();
        refusal.hash(&mut hasher);
        let digest = hasher.finish().max(1);
        for (index, slot) in self.logged.iter().enumerate() {
            match slot.compare_exchange(0, digest, Relaxed, Relaxed) {
                Ok(_free) => return Some(index),
                Err(known) if known == digest => return None,
                Err(_another) => {}
            }
        }
        None
    }
}

#[cfg(test)]
pub mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    thread_local! {
        static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    /// Refusals whose lines [`lines`] returns.
    pub fn refusals() -> Rc<Refusals> {
        LINES.take();
        let write = |line: &str| LINES.with_borrow_mut(|lines| lines.push(line.to_owned()));
        Rc::new(Refusals::new(Some(write)).unwrap())
    }

    /// This thread's lines since the last call.
    pub fn lines() -> Vec<String> {
        LINES.take()
    }

    #[test]
    fn each_refusal_is_told_once_with_what_to_write() {
        let refusals = refusals();
        let to = "10.0.0.1:80".parse().unwrap();
        for _ in 0..3 {
            refusals.log(RefusedAccess::Destination(to));
            refusals.log(RefusedAccess::Name("db.test"));
        }
        refusals.log(RefusedAccess::Destination("10.0.0.1:81".parse().unwrap()));
        let lines = lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        for text in ["cwasi.network", "`10.0.0.1:80`"] {
            assert!(lines[0].contains(text), "{}", lines[0]);
        }
        assert!(lines[1].contains("`db.test:PORT`") && lines[2].contains("`10.0.0.1:81`"));
    }

    #[test]
    fn logged_refusals_are_bounded() {
        let refusals = refusals();
        for port in 1..=u16::MAX {
            refusals.log(RefusedAccess::Destination(SocketAddr::from(([10, 0, 0, 1], port))));
        }
        let lines = lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert!(lines[LINES_MAX - 1].contains("not logged any more"), "{lines:?}");
    }
}
