//! Where a callback goes: the client's URL, and the addresses of it that the operator allows.
//!
//! Invariant: the gateway connects only to addresses that [`Destination::addresses`] returned, so a name that leads
//! elsewhere since it was accepted leads nowhere.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use cwasi_wire::egress::{Egress, host_name, is_special};
use hyper::Uri;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Longest URL in bytes.
const URL_MAX: usize = 2048;
/// Longest look-up of a name.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Why a callback does not go to a URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DestinationError {
    /// It is none, or one that the gateway does not take.
    #[error("X-Callback-Url {0}")]
    Url(&'static str),
    /// The operator does not allow it.
    #[error(
        "X-Callback-Url leads to {host}:{port}, which no --callback-allow of the gateway covers"
    )]
    Forbidden {
        /// Name or address of the host.
        host: String,
        port: u16,
    },
    /// The name has no address now.
    #[error("X-Callback-Url: the name {host} cannot be looked up: {error}")]
    Lookup {
        host: String,
        /// Why not.
        error: String,
    },
}

impl DestinationError {
    /// True if the same URL may be allowed later.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self, Self::Lookup { .. })
    }
}

/// A host, by address or name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    host: Host,
    port: u16,
    /// `https`.
    pub encrypted: bool,
    /// As the header `Host` has it.
    pub authority: String,
    pub path: String,
}

impl Destination {
    /// Reads an absolute URL of HTTP or HTTPS without a user's name.
    ///
    /// # Errors
    /// [`DestinationError::Url`] for anything else.
    pub(super) fn parse(url: &str) -> Result<Self, DestinationError> {
        let wrong = DestinationError::Url;
        if url.len() > URL_MAX {
            return Err(wrong("is longer than 2048 bytes"));
        }
        let uri: Uri = url.parse().map_err(|_invalid| wrong("is no URL"))?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("does not begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or(wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("has a user name: send secrets in its path or query"));
        }
        let name = authority.host();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let host = match bare.parse::<IpAddr>() {
            Ok(address) => Host::Address(address.to_canonical()),
            Err(_) => Host::Name(host_name(name).ok_or(wrong("names no host"))?),
        };
        let port = match &authority.as_str()[name.len()..] {
            "" | ":" if encrypted => 443,
            "" | ":" => 80,
            _ => authority
                .port_u16()
                .filter(|port| *port != 0)
                .ok_or(wrong("has a port that is not from 1 to 65535"))?,
        };
        Ok(Self {
            host,
            port,
            encrypted,
            authority: authority.as_str().to_owned(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// The host as certificates name it.
    pub(super) fn host(&self) -> String {
        match &self.host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name.clone(),
        }
    }

    /// The addresses to try, each allowed by itself or as one of its name.
    ///
    /// # Errors
    /// When none is allowed, or the name cannot be looked up.
    pub(super) async fn addresses(
        &self,
        allow: &Egress,
    ) -> Result<Vec<SocketAddr>, DestinationError> {
        let found = match &self.host {
            Host::Address(address) => vec![*address],
            // Looked up only if it is allowed: whether another name exists is none of a client's business.
            Host::Name(name) if allow.allows_name(name, self.port) => {
                look_up(name, self.port).await?
            }
            Host::Name(_) => Vec::new(),
        };
        let mut allowed = self.allowed(found, allow);
        allowed.truncate(ADDRESSES_MAX);
        if allowed.is_empty() {
            return Err(DestinationError::Forbidden { host: self.host(), port: self.port });
        }
        Ok(allowed)
    }

    /// Those of the host's addresses that are allowed. A name does not stand for the host's own addresses, nor for a
    /// cloud's metadata service: the name's server would choose them.
    fn allowed(&self, found: Vec<IpAddr>, allow: &Egress) -> Vec<SocketAddr> {
        let by_name = match &self.host {
            Host::Name(name) => allow.allows_name(name, self.port),
            Host::Address(_) => false,
        };
        let may = |address: &IpAddr| {
            !allow.denies(*address, self.port)
                && (allow.allows_address(*address, self.port) || (by_name && !is_special(*address)))
        };
        let allowed = found.into_iter().filter(may);
        allowed.map(|address| SocketAddr::new(address, self.port)).collect()
    }
}

async fn look_up(name: &str, port: u16) -> Result<Vec<IpAddr>, DestinationError> {
    let failed = |error: &dyn std::fmt::Display| DestinationError::Lookup {
        host: name.to_owned(),
        error: error.to_string(),
    };
    let found = timeout(LOOKUP_MAX, lookup_host((name, port)))
        .await
        .map_err(|elapsed| failed(&elapsed))?
        .map_err(|error| failed(&error))?;
    Ok(found.map(|address| address.ip().to_canonical()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(entries: &[&str]) -> Egress {
        let entries = entries.iter().map(|entry| entry.parse().unwrap()).collect();
        Egress { entries, ..Egress::default() }
    }

    fn goes(url: &str, found: &[&str], entries: &[&str]) -> usize {
        let found = found.iter().map(|address| address.parse().unwrap()).collect();
        Destination::parse(url).unwrap().allowed(found, &allow(entries)).len()
    }

    #[test]
    fn urls_are_taken_apart_and_odd_ones_refused() {
        let parsed = Destination::parse("https://Hook.example:8443/a?b=c#d").unwrap();
        assert_eq!((parsed.host().as_str(), parsed.port), ("hook.example", 8443));
        assert_eq!((parsed.path.as_str(), parsed.encrypted), ("/a?b=c", true));
        let parsed = Destination::parse("http://[::ffff:127.0.0.1]").unwrap();
        assert_eq!((parsed.host().as_str(), parsed.port), ("127.0.0.1", 80));
        assert_eq!(parsed.path, "/");
        let long = format!("http://a/{}", "x".repeat(URL_MAX));
        for wrong in [
            "",
            "/path",
            "hook.example",
            "ftp://hook.example",
            "file:///etc/passwd",
            "http://user:secret@hook.example/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://127.1/",
            "http://-a/",
            "http://a b/",
            "http://hook.example:99999/",
            "http://hook.example:0/",
            "http://[::1]:65536/",
            &long,
        ] {
            assert!(matches!(Destination::parse(wrong), Err(DestinationError::Url(_))), "{wrong}");
        }
    }

    #[test]
    fn callbacks_go_to_listed_hosts_only() {
        let hook = "http://hook.example/";
        assert_eq!(goes(hook, &["192.0.2.1"], &[]), 0, "denied by default");
        assert_eq!(goes(hook, &["192.0.2.1"], &["hook.example:80"]), 1);
        assert_eq!(goes(hook, &["192.0.2.1"], &["hook.example:443"]), 0, "another port");
        assert_eq!(goes(hook, &["192.0.2.1"], &["other.example:80"]), 0);
        assert_eq!(goes(hook, &["192.0.2.1", "127.0.0.1"], &["*.example:*"]), 1);
        for special in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "64:ff9b::7f00:1"] {
            assert_eq!(goes(hook, &[special], &["hook.example:80"]), 0, "{special}");
        }
        assert_eq!(goes(hook, &["10.1.2.3"], &["10.0.0.0/8"]), 1, "by address");
        assert_eq!(goes("http://10.1.2.3/", &["10.1.2.3"], &["10.0.0.0/8:8080"]), 0);
        assert_eq!(goes("http://127.0.0.1:99/", &["127.0.0.1"], &["127.0.0.1:99"]), 1);
    }

    #[tokio::test]
    async fn what_is_not_allowed_is_named() {
        let error = Destination::parse("http://127.0.0.1/").unwrap().addresses(&allow(&[])).await;
        let forbidden = DestinationError::Forbidden { host: "127.0.0.1".to_owned(), port: 80 };
        assert_eq!(error.unwrap_err(), forbidden);
        assert!(!forbidden.is_transient());
        // The same answer for a name that exists and for one that does not: neither is looked up.
        for name in ["localhost", "nobody.invalid"] {
            let to = Destination::parse(&format!("http://{name}/")).unwrap();
            let error = to.addresses(&allow(&["127.0.0.0/8", "other.example:80"])).await;
            let forbidden = DestinationError::Forbidden { host: name.to_owned(), port: 80 };
            assert_eq!(error.unwrap_err(), forbidden);
        }
    }
}
