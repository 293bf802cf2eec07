//! Looks up host names without glibc: reads `/etc/hosts` and the name servers of `/etc/resolv.conf`. Runs in a
//! worker.
//!
//! Invariant: only files that the operator mounted count. An image's own files could map an allowed name to any
//! address.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::dns::{self, ADDRESSES_MAX, DnsAnswer, RecordKind};

/// Most bytes of a file.
const FILE_MAX: u64 = 1 << 20;
/// The same as in glibc.
const SERVERS_MAX: usize = 3;
const SEARCH_MAX: usize = 6;
const NDOTS_MAX: usize = 15;
const TIMEOUT_DEFAULT_S: u64 = 5;
const ATTEMPTS_DEFAULT: u32 = 2;
/// Longest wait for one answer in seconds, and most rounds; the file cannot raise them.
const TIMEOUT_MAX_S: u64 = 10;
const ATTEMPTS_MAX: u32 = 3;
/// Longest look-up of one name.
pub const LOOK_UP_MAX: Duration = Duration::from_secs(20);
/// The name that needs no file.
const LOCALHOST: &str = "localhost";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// The file with addresses of hosts.
    pub hosts: Option<PathBuf>,
    /// The file with name servers.
    pub servers: Option<PathBuf>,
}

/// A name without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUpError {
    /// The name does not exist.
    NotFound,
    /// The name has no address of this kind.
    NoAddress,
    /// No name server answered.
    Again,
    /// No name server is configured.
    NoServers,
}

/// Addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedAddresses {
    /// From the operator's file.
    Hosts(Vec<IpAddr>),
    /// From a name server, whose records another party may have written.
    Servers(Vec<IpAddr>),
}

impl Resolver {
    /// Addresses of `name`, a valid host name ([`host_name`](cwasi_wire::egress::host_name)). Name servers have
    /// `longest` to answer, and no longer than [`LOOK_UP_MAX`].
    ///
    /// # Errors
    /// When there are none.
    pub fn look_up(
        &self,
        name: &str,
        kinds: &[RecordKind],
        longest: Duration,
    ) -> Result<ResolvedAddresses, LookUpError> {
        let hosts = self.hosts.as_deref().map(text).unwrap_or_default();
        let wanted = |address: &IpAddr| kinds.contains(&kind_of(address));
        let listed: Vec<IpAddr> = in_hosts(&hosts, name).into_iter().filter(wanted).collect();
        if !listed.is_empty() {
            return Ok(ResolvedAddresses::Hosts(listed));
        }
        if name == LOCALHOST {
            let own = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
            return Ok(ResolvedAddresses::Hosts(own.into_iter().filter(wanted).collect()));
        }
        let servers = Servers::read(&self.servers.as_deref().map(text).unwrap_or_default());
        if servers.addresses.is_empty() {
            return Err(LookUpError::NoServers);
        }
        let end = Instant::now() + longest.min(LOOK_UP_MAX);
        servers.look_up(name, kinds, end).map(ResolvedAddresses::Servers)
    }
}

/// A regular file's text; empty if it cannot be read.
fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|metadata| metadata.is_file())
    {
        // An error keeps the bytes that were read before it.
        let _partly = file.take(FILE_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const fn kind_of(address: &IpAddr) -> RecordKind {
    match address {
        IpAddr::V4(_) => RecordKind::A,
        IpAddr::V6(_) => RecordKind::Aaaa,
    }
}

pub fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    };
    text.lines().filter_map(address).take(ADDRESSES_MAX).collect()
}

/// Settings of `resolv.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    pub addresses: Vec<IpAddr>,
    search: Vec<String>,
    /// A name with at least this many dots is first looked up as it is.
    ndots: usize,
    timeout: Duration,
    attempts: u32,
}

impl Servers {
    pub fn read(text: &str) -> Self {
        let mut servers = Self {
            addresses: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(TIMEOUT_DEFAULT_S),
            attempts: ATTEMPTS_DEFAULT,
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") if servers.addresses.len() < SERVERS_MAX => {
                    servers
                        .addresses
                        .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                Some("search" | "domain") => {
                    let names = words.filter_map(cwasi_wire::egress::host_name);
                    servers.search = names.take(SEARCH_MAX).collect();
                }
                Some("options") => words.for_each(|word| servers.option(word)),
                _ => {}
            }
        }
        servers
    }

    fn option(&mut self, word: &str) {
        let Some((key, value)) = word.split_once(':') else { return };
        let Ok(number) = value.parse::<u32>() else { return };
        match key {
            "ndots" => self.ndots = usize::try_from(number).unwrap_or(NDOTS_MAX).min(NDOTS_MAX),
            "timeout" => {
                self.timeout = Duration::from_secs(u64::from(number).clamp(1, TIMEOUT_MAX_S));
            }
            "attempts" => self.attempts = number.clamp(1, ATTEMPTS_MAX),
            _ => {}
        }
    }

    /// The names to ask for, in order.
    pub fn candidates(&self, name: &str) -> Vec<String> {
        let below = self.search.iter().map(|domain| format!("{name}.{domain}"));
        let below = below.filter(|name| name.len() <= cwasi_wire::egress::HOST_NAME_MAX);
        let mut all: Vec<String> = below.collect();
        let dots = name.matches('.').count();
        let at = if dots >= self.ndots { 0 } else { all.len() };
        all.insert(at, name.to_owned());
        all
    }

    fn look_up(
        &self,
        name: &str,
        kinds: &[RecordKind],
        end: Instant,
    ) -> Result<Vec<IpAddr>, LookUpError> {
        let mut worst = LookUpError::NotFound;
        for candidate in self.candidates(name) {
            let mut found = Vec::new();
            for kind in kinds {
                match self.ask(&candidate, *kind, end) {
                    DnsAnswer::Addresses(addresses) => {
                        worst = LookUpError::NoAddress;
                        found.extend(addresses);
                    }
                    DnsAnswer::NoSuchName => {}
                    // Another candidate must not replace a name that may exist.
                    DnsAnswer::Failed if found.is_empty() => return Err(LookUpError::Again),
                    DnsAnswer::Failed => {}
                }
            }
            if !found.is_empty() {
                found.truncate(ADDRESSES_MAX);
                return Ok(found);
            }
        }
        Err(worst)
    }

    fn ask(&self, name: &str, kind: RecordKind, end: Instant) -> DnsAnswer {
        for _ in 0..self.attempts {
            for server in &self.addresses {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return DnsAnswer::Failed;
                }
                match dns::ask(*server, name, kind, left.min(self.timeout)) {
                    DnsAnswer::Failed => {}
                    answer => return answer,
                }
            }
        }
        DnsAnswer::Failed
    }
}

#[cfg(test)]
#[path = "names/tests.rs"]
mod tests;
