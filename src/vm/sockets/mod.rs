//! Sockets of guests, limited to the destinations that `cwasi.network` allows. Runs in a worker.
//!
//! The engine opens sockets and moves their bytes. Every call that names a destination goes through this folder: it
//! reads the destination once, decides, and makes the system call with the bytes that it read. So do socket options
//! ([`options`]). Refusals go to the function's log ([`refusals`]).
//!
//! Invariant: an address may be reached if an entry covers address and port, or if a look-up by the same instance
//! gave the address for a name that an entry allows on that port. Look-ups of other names are refused, because a
//! question to a name server carries data, too. Addresses of [`is_special`] count only from the operator's
//! `/etc/hosts`, or if an entry covers them as addresses.

mod calls;
pub mod dns;
mod errno;
pub mod names;
mod options;
mod refusals;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use cwasi_wire::egress::{Egress, HOSTS_FILE, RESOLVER_FILE, host_name, is_special};

pub use self::calls::Results;
use self::dns::RecordKind;
pub use self::errno::WasiErrno;
use self::names::{LOOK_UP_MAX, LookUpError, ResolvedAddresses, Resolver};
pub use self::refusals::{Refusals, RefusedAccess, WriteLine};

/// Most answers that an instance's sockets remember; the oldest are dropped first.
const ANSWERS_MAX: usize = 256;

/// The destinations of one instance's sockets.
#[derive(Debug)]
pub struct Sockets {
    egress: Egress,
    resolver: Resolver,
    /// Looked-up names, each with one address.
    answers: RefCell<VecDeque<(String, IpAddr)>>,
    refusals: Rc<Refusals>,
}

impl Sockets {
    /// Sockets limited to `egress`; `refusals` are the function's.
    #[must_use]
    pub fn new(egress: Egress, refusals: Rc<Refusals>) -> Self {
        let file = |trusted: bool, path: &str| trusted.then(|| PathBuf::from(path));
        let resolver = Resolver {
            hosts: file(egress.trusts_hosts, HOSTS_FILE),
            servers: file(egress.trusts_resolver, RESOLVER_FILE),
        };
        Self { egress, resolver, answers: RefCell::default(), refusals }
    }

    /// Decides whether a socket may connect or send to `to`.
    ///
    /// # Errors
    /// [`WasiErrno::ACCES`]; the log says why.
    pub fn allows(&self, to: SocketAddr) -> Result<(), WasiErrno> {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        if self.is_allowed(to) {
            return Ok(());
        }
        Err(self.refuse_address(to, RefusedAccess::Destination(to)))
    }

    /// Refuses an address that is denied, or else not allowed.
    fn refuse_address(&self, to: SocketAddr, not_allowed: RefusedAccess<'_>) -> WasiErrno {
        let is_denied = self.egress.denies(to.ip(), to.port());
        self.refuse(if is_denied { RefusedAccess::Denied(to) } else { not_allowed })
    }

    fn is_allowed(&self, to: SocketAddr) -> bool {
        let (address, port) = (to.ip(), to.port());
        let by_name = || {
            let answers = self.answers.borrow();
            let mut names = answers.iter().filter(|(_, known)| *known == address);
            names.any(|(name, _)| self.egress.allows_name(name, port))
        };
        !self.egress.denies(address, port)
            && (self.egress.allows_address(address, port) || by_name())
    }

    /// The addresses to which a request for `host`, a name or an address, may connect. A look-up may take `longest`.
    ///
    /// # Errors
    /// [`WasiErrno::ACCES`] if none is allowed; the log says why. The others of [`Self::look_up`].
    pub fn destinations(
        &self,
        host: &str,
        port: u16,
        longest: Duration,
    ) -> Result<Vec<SocketAddr>, WasiErrno> {
        if let Ok(address) = host.parse::<IpAddr>() {
            let to = SocketAddr::new(address.to_canonical(), port);
            let refused = || self.refuse_address(to, RefusedAccess::RequestToAddress(to));
            return if self.is_allowed(to) { Ok(vec![to]) } else { Err(refused()) };
        }
        let name = host_name(host).ok_or(WasiErrno::AI_NO_NAME)?;
        let refused = || self.refuse(RefusedAccess::Request(&name, port));
        if !self.egress.may_look_up(&name) {
            return Err(refused());
        }
        let found = self.look_up_name(&name, &[RecordKind::A, RecordKind::Aaaa], longest)?;
        let to = found.into_iter().map(|address| SocketAddr::new(address.to_canonical(), port));
        let allowed: Vec<_> = to.filter(|to| self.is_allowed(*to)).collect();
        if allowed.is_empty() { Err(refused()) } else { Ok(allowed) }
    }

    /// Writes a line about a request that cannot be sent, once for the function.
    pub fn log(&self, refusal: RefusedAccess<'_>) {
        self.refusals.log(refusal);
    }

    /// Decides whether a socket may be bound to `at`: only to the unspecified address and port 0, as programs do that
    /// only send.
    ///
    /// # Errors
    /// As [`Self::allows`].
    pub fn allows_bind(&self, at: SocketAddr) -> Result<(), WasiErrno> {
        if at.port() != 0 || !at.ip().is_unspecified() {
            return Err(self.refuse(RefusedAccess::Binding(at)));
        }
        Ok(())
    }

    /// Addresses of a host name in the guest's spelling.
    ///
    /// # Errors
    /// [`WasiErrno::ACCES`] for a name that `cwasi.network` does not allow, or one of `getaddrinfo`.
    pub fn look_up(&self, host: &str, kinds: &[RecordKind]) -> Result<Vec<IpAddr>, WasiErrno> {
        let name = host_name(host).ok_or(WasiErrno::AI_NO_NAME)?;
        if !self.egress.may_look_up(&name) {
            return Err(self.refuse(RefusedAccess::Name(&name)));
        }
        self.look_up_name(&name, kinds, LOOK_UP_MAX)
    }

    fn look_up_name(
        &self,
        name: &str,
        kinds: &[RecordKind],
        longest: Duration,
    ) -> Result<Vec<IpAddr>, WasiErrno> {
        let found = self.resolver.look_up(name, kinds, longest).map_err(|error| match error {
            LookUpError::NotFound => WasiErrno::AI_NO_NAME,
            LookUpError::NoAddress => WasiErrno::AI_NO_DATA,
            LookUpError::Again => WasiErrno::AI_AGAIN,
            LookUpError::NoServers => {
                self.refusals.log(RefusedAccess::NoServers(name));
                WasiErrno::AI_FAIL
            }
        })?;
        let addresses = self.usable(name, found);
        if addresses.is_empty() {
            return Err(WasiErrno::AI_NO_DATA);
        }
        self.remember(name, &addresses);
        Ok(addresses)
    }

    /// The addresses of `name`, without special ones from a name server.
    fn usable(&self, name: &str, found: ResolvedAddresses) -> Vec<IpAddr> {
        match found {
            ResolvedAddresses::Hosts(addresses) => addresses,
            ResolvedAddresses::Servers(mut addresses) => {
                addresses.retain(|one| {
                    let counts = !is_special(*one) || self.egress.covers_address(*one);
                    if !counts {
                        self.refusals.log(RefusedAccess::Special(name, *one));
                    }
                    counts
                });
                addresses
            }
        }
    }

    /// Logs the refusal; returns the guest's errno.
    fn refuse(&self, refusal: RefusedAccess<'_>) -> WasiErrno {
        self.refusals.log(refusal);
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
