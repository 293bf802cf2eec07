//! Settings of traces: the table `[traces]` of the node's configuration.

use http::Uri;
use serde::{Deserialize, Serialize};

use cwasi_wire::trace::SampleRatio;

/// Path of the receiver, if the URL has none (OTLP specification).
const OTLP_PATH: &str = "/v1/traces";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct TracesConfig {
    /// Share of the traces that begin on this node and are recorded, between 0.0 and 1.0.
    pub sample: SampleRatio,
    /// An HTTP client's `traceparent` decides whether its trace is recorded; otherwise `sample` does.
    pub clients_decide: bool,
    /// URL of an OTLP receiver, `http://HOST:PORT[/PATH]`; `None` = spans stay on this node.
    pub otlp: Option<OtlpUrl>,
}

/// URL of an OTLP receiver.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct OtlpUrl {
    host: String,
    port: u16,
    path: String,
}

impl OtlpUrl {
    /// Port of a receiver whose URL has none (OTLP specification).
    pub const PORT: u16 = 4318;

    /// `HOST:PORT`, as a socket and the header `Host` have it.
    #[must_use]
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Path of the requests.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl TryFrom<String> for OtlpUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("traces.otlp: {error}"))?;
        if uri.scheme_str() != Some("http") {
            return Err(
                "traces.otlp must begin with http://; for TLS run a collector on this node"
                    .to_owned(),
            );
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| "traces.otlp names no host".to_owned())?.to_owned();
        let path = match uri.path().trim_end_matches('/') {
            "" => OTLP_PATH.to_owned(),
            path => path.to_owned(),
        };
        Ok(Self { host, port: uri.port_u16().unwrap_or(Self::PORT), path })
    }
}

impl From<OtlpUrl> for String {
    fn from(url: OtlpUrl) -> Self {
        format!("http://{}{}", url.authority(), url.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receivers_url_has_defaults_and_is_http() {
        let url = |text: &str| OtlpUrl::try_from(text.to_owned());
        let short = url("http://collector").unwrap();
        assert_eq!((short.authority().as_str(), short.path()), ("collector:4318", "/v1/traces"));
        let full = url("http://[::1]:99/a/b").unwrap();
        assert_eq!((full.authority().as_str(), full.path()), ("[::1]:99", "/a/b"));
        assert_eq!(url(&String::from(full.clone())), Ok(full));
        assert_eq!(url("http://collector:80/x").unwrap().authority(), "collector:80");
        for bad in ["https://collector", "collector:4318", "/v1", "", "http://a b"] {
            assert!(url(bad).unwrap_err().contains("traces.otlp"), "{bad}");
        }
    }
}
