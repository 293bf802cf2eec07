//! Sockets of guests, limited to the destinations that `cwasi.network` allows.
//!
//! The engine opens sockets and moves their bytes. Every call that says where to goes through this folder instead: it
//! reads the destination once, decides, and makes the system call on what it has read. So do socket options
//! ([`options`]). What is refused is told on the function's log ([`refusals`]).
//!
//! The rule: an address may be reached when an entry covers the address and the port, or when a look-up by the same
//! instance gave the address for a name that an entry allows on that port. Look-ups of other names are refused, since a
//! question to a name server carries data too. Addresses for which [`is_special`] holds count only when they come from
//! the operator's `/etc/hosts`, or when an entry covers them as addresses.

mod calls;
mod dns;
mod errno;
mod names;
mod options;
mod refusals;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

use crate::wire::egress::{Egress, HOSTS_FILE, RESOLVER_FILE, host_name, is_special};

pub use self::calls::Results;
use self::dns::Kind;
pub use self::errno::WasiErrno;
use self::names::{Found, LookUpError, Resolver};
use self::refusals::Refusal;
pub use self::refusals::{Refusals, WriteLine};

/// Most answers that an instance's sockets remember; the oldest are forgotten first.
const ANSWERS_MAX: usize = 256;

/// The destinations of one instance's sockets.
#[derive(Debug)]
pub struct Sockets {
    egress: Egress,
    resolver: Resolver,
    /// Names that were looked up, each with one address.
    answers: RefCell<VecDeque<(String, IpAddr)>>,
    refusals: Rc<Refusals>,
}

impl Sockets {
    /// Sockets that reach what `egress` allows; `refusals` are the function's.
    #[must_use]
    pub fn new(egress: Egress, refusals: Rc<Refusals>) -> Self {
        let file = |trusted: bool, path: &str| trusted.then(|| PathBuf::from(path));
        let resolver = Resolver {
            hosts: file(egress.trusts_hosts, HOSTS_FILE),
            servers: file(egress.trusts_resolver, RESOLVER_FILE),
        };
        Self { egress, resolver, answers: RefCell::default(), refusals }
    }

    /// Whether a socket may connect or send to `to`.
    fn allows(&self, to: SocketAddr) -> Result<(), WasiErrno> {
        let (address, port) = (to.ip().to_canonical(), to.port());
        let by_name = || {
            let answers = self.answers.borrow();
            let mut names = answers.iter().filter(|(_, known)| *known == address);
            names.any(|(name, _)| self.egress.allows_name(name, port))
        };
        if self.egress.allows_address(address, port) || by_name() {
            Ok(())
        } else {
            Err(self.refuse(Refusal::Destination(SocketAddr::new(address, port))))
        }
    }

    /// Addresses of a host that a guest names, in its own spelling.
    fn look_up(&self, host: &str, kinds: &[Kind]) -> Result<Vec<IpAddr>, WasiErrno> {
        let name = host_name(host).ok_or(WasiErrno::AI_NO_NAME)?;
        if !self.egress.may_look_up(&name) {
            return Err(self.refuse(Refusal::Name(&name)));
        }
        let found = self.resolver.look_up(&name, kinds).map_err(|error| match error {
            LookUpError::NotFound => WasiErrno::AI_NO_NAME,
            LookUpError::NoAddress => WasiErrno::AI_NO_DATA,
            LookUpError::Again => WasiErrno::AI_AGAIN,
            LookUpError::NoServers => {
                self.refusals.tell(Refusal::NoServers(&name));
                WasiErrno::AI_FAIL
            }
        })?;
        let addresses = self.usable(&name, found);
        if addresses.is_empty() {
            return Err(WasiErrno::AI_NO_DATA);
        }
        self.remember(&name, &addresses);
        Ok(addresses)
    }

    /// The addresses of `name` without those that a name server must not name.
    fn usable(&self, name: &str, found: Found) -> Vec<IpAddr> {
        match found {
            Found::Hosts(addresses) => addresses,
            Found::Servers(mut addresses) => {
                addresses.retain(|one| {
                    let counts = !is_special(*one) || self.egress.covers_address(*one);
                    if !counts {
                        self.refusals.tell(Refusal::Special(name, *one));
                    }
                    counts
                });
                addresses
            }
        }
    }

    /// Tells it; the errno that the guest gets.
    fn refuse(&self, refusal: Refusal<'_>) -> WasiErrno {
        self.refusals.tell(refusal);
        WasiErrno::ACCES
    }

    fn remember(&self, name: &str, addresses: &[IpAddr]) {
        let mut answers = self.answers.borrow_mut();
        for address in addresses {
            let answer = (name.to_owned(), address.to_canonical());
            if !answers.contains(&answer) {
                answers.push_back(answer);
            }
        }
        while answers.len() > ANSWERS_MAX {
            answers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
