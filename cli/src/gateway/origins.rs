//! Which web pages may call functions (CORS), and under which names the gateway is called. Pure, but for the calls.
//!
//! Invariants:
//! - Without a token, other web pages than those listed and the gateway's own run nothing: a browser sends their requests
//!   as it sends its user's.
//! - Pages read answers of functions only: lists, logs and metrics have no CORS headers.

use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cwasi_host::http::response_body::ResponseBody;
use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderName, HeaderValue,
    ORIGIN as ORIGIN_HEADER,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response};
use tower::{Layer as _, Service as _, service_fn};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, Any, CorsLayer};

/// How long a browser keeps the answer to a preflight request. Most keep it no longer.
const PREFLIGHT_KEPT: Duration = Duration::from_secs(600);
/// How the page that a browser shows is related to the address that it asks.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Stands for every origin.
const ANY: &str = "*";
/// Syntax of an origin.
const ORIGIN: &str = "write an origin as browsers do, such as https://app.example or http://localhost:3000, or * for all";
/// Syntax of a host.
const HOST_FORM: &str =
    "write a name or an address without a port, such as gateway.example, 10.0.0.7 or [::1]";

/// A value of `--cors-origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigin {
    Any,
    /// Pages of one origin.
    One(HeaderValue),
}

impl FromStr for CorsOrigin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == ANY {
            return Ok(Self::Any);
        }
        let url = reqwest::Url::parse(text).map_err(|_error| ORIGIN)?;
        // Browsers send just this form.
        let is_origin = url.origin().ascii_serialization() == text && !text.contains(ANY);
        let value = HeaderValue::try_from(text).map_err(|_error| ORIGIN)?;
        if is_origin { Ok(Self::One(value)) } else { Err(ORIGIN) }
    }
}

/// A value of `--allowed-host`: a host as the header `Host` has it, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost(String);

impl FromStr for AllowedHost {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_host = |it: &Authority| it.host() == text && !text.is_empty();
        let authority = text.parse::<Authority>().ok().filter(is_host).ok_or(HOST_FORM)?;
        Ok(Self(authority.host().to_ascii_lowercase()))
    }
}

/// The settings; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Origins {
    cors: Option<CorsLayer>,
    listed: Arc<[CorsOrigin]>,
    /// Empty = every one.
    hosts: Arc<[AllowedHost]>,
}

impl Origins {
    pub(super) fn new(origins: &[CorsOrigin], hosts: Vec<AllowedHost>) -> Self {
        let one = |origin: &CorsOrigin| match origin {
            CorsOrigin::Any => None,
            CorsOrigin::One(origin) => Some(origin.clone()),
        };
        let listed: Option<Vec<HeaderValue>> = origins.iter().map(one).collect();
        let allowed = listed.map_or_else(AllowOrigin::any, AllowOrigin::list);
        let layer = CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods(AllowMethods::mirror_request())
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(Any)
            .max_age(PREFLIGHT_KEPT);
        let cors = (!origins.is_empty()).then_some(layer);
        Self { cors, listed: origins.into(), hosts: hosts.into() }
    }

    /// True if a browser sends the request for a page that is neither listed nor the gateway's own. Programs send none
    /// of these headers, and pages cannot set them.
    pub(super) fn is_foreign(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(ORIGIN_HEADER);
        let is_listed = self.listed.iter().any(|listed| match listed {
            CorsOrigin::Any => true,
            CorsOrigin::One(one) => origin == Some(one),
        });
        if is_listed {
            return false;
        }
        match headers.get(SEC_FETCH_SITE) {
            // `none`: the user typed the address.
            Some(site) => !matches!(site.as_bytes(), b"same-origin" | b"none"),
            None => origin.is_some_and(|origin| !is_own(origin, headers.get(HOST))),
        }
    }

    /// True if the request names an allowed host wherever it names one.
    pub(super) fn admits<B>(&self, request: &Request<B>) -> bool {
        if self.hosts.is_empty() {
            return true;
        }
        let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let Some(header) = header.and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        // A request to a proxy names it in its first line, too.
        let mut named = [Some(&header), request.uri().authority()].into_iter().flatten();
        named.all(|authority| {
            self.hosts.iter().any(|allowed| allowed.0.eq_ignore_ascii_case(authority.host()))
        })
    }

    /// Answers a request for a function by `call`, and a preflight request by itself.
    pub(super) async fn answer<F: Future<Output = Response<ResponseBody>>>(
        &self,
        request: Request<Incoming>,
        call: impl Fn(Request<Incoming>) -> F,
    ) -> Response<ResponseBody> {
        let Some(layer) = &self.cors else { return call(request).await };
        // Any other OPTIONS is the function's.
        if request.method() == Method::OPTIONS
            && !request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        {
            return call(request).await;
        }
        let answering = service_fn(|request| {
            let answer = call(request);
            async { Ok::<_, Infallible>(answer.await) }
        });
        match layer.layer(answering).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// True for the origin of pages that this host served, by either scheme: TLS may end before the gateway.
fn is_own(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let origin = origin.as_bytes();
    let own = [b"http://".as_slice(), b"https://"].iter().find_map(|it| origin.strip_prefix(*it));
    own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for text in ["https://app.example", "http://localhost:3000", "http://[::1]:8"] {
            assert_eq!(text.parse(), Ok(CorsOrigin::One(HeaderValue::from_static(text))));
        }
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        for wrong in [
            "",
            "app.example",
            "null",
            "https://app.example/",
            "https://app.example/x",
            "https://APP.example",
            "https://app.example:443",
            "https://*.example",
            "https://a@app.example",
            "file:///x",
        ] {
            assert_eq!(wrong.parse::<CorsOrigin>(), Err(ORIGIN), "{wrong}");
        }
    }

    #[test]
    fn a_request_names_an_allowed_host() {
        let hosts = ["Gateway.example", "10.0.0.7", "[::1]"];
        let hosts = hosts.map(|host| host.parse::<AllowedHost>().unwrap()).to_vec();
        for wrong in ["", "a:80", "a b", "a/b", "u@a", "::1"] {
            assert_eq!(wrong.parse::<AllowedHost>(), Err(HOST_FORM), "{wrong}");
        }
        let (some, all) = (Origins::new(&[], hosts), Origins::new(&[], Vec::new()));
        for (uri, host, admitted) in [
            ("/", "gateway.example", true),
            ("/", "GATEWAY.EXAMPLE:8443", true),
            ("/", "10.0.0.7", true),
            ("/", "[::1]:80", true),
            ("http://gateway.example/", "gateway.example", true),
            ("http://evil.example/", "gateway.example", false),
            ("http://gateway.example/", "evil.example", false),
            ("/", "evil.example", false),
            ("/", "gateway.example.evil.example", false),
            ("/", "gateway.example.", false),
            ("/", "", false),
        ] {
            let request = Request::get(uri).header("host", host).body(()).unwrap();
            assert_eq!(some.admits(&request), admitted, "{uri} {host}");
            assert!(all.admits(&request));
        }
        assert!(!some.admits(&Request::get("/").body(()).unwrap()));
    }

    #[test]
    fn other_pages_are_foreign_and_programs_are_not() {
        let one = |it: &str| it.parse::<CorsOrigin>().unwrap();
        let listed = Origins::new(&[one("https://app.example")], Vec::new());
        let (none, any) = (Origins::new(&[], Vec::new()), Origins::new(&[one("*")], Vec::new()));
        for (origin, site, foreign) in [
            ("", "", false),
            ("http://here:8080", "", false),
            ("https://HERE:8080", "", false),
            ("http://here", "", true),
            ("http://evil.example", "", true),
            ("null", "", true),
            ("", "same-origin", false),
            ("", "none", false),
            ("", "cross-site", true),
            ("", "same-site", true),
            // A proxy has replaced the name.
            ("https://public.example", "same-origin", false),
            ("http://here:8080", "cross-site", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("here:8080"));
            for (name, value) in [(ORIGIN_HEADER, origin), (SEC_FETCH_SITE, site)] {
                if !value.is_empty() {
                    headers.insert(name, HeaderValue::from_static(value));
                }
            }
            assert_eq!(none.is_foreign(&headers), foreign, "{origin} {site}");
            assert_eq!(listed.is_foreign(&headers), foreign, "{origin} {site}");
            assert!(!any.is_foreign(&headers), "{origin} {site}");
            headers.insert(ORIGIN_HEADER, HeaderValue::from_static("https://app.example"));
            headers.insert(SEC_FETCH_SITE, HeaderValue::from_static("cross-site"));
            assert!(none.is_foreign(&headers) && !listed.is_foreign(&headers));
        }
    }
}
