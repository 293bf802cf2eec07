//! `cwasi dashboard`: a page about the functions of this node, for people who sit before it.
//!
//! - `state`: what the page shows, as JSON, with `rates` and `files` behind it. `traces`: waterfalls of recent runs and
//!   calls. The page itself is `index.html`, `style.css`, `app.js` and `traces.js`: plain files inside this program.
//!
//! Invariants:
//! - It only reads, answers only `GET`, and listens on loopback addresses only.
//! - Data is for clients with the token, which the command prints as the fragment of its address: browsers send no
//!   fragments, and other users of the machine do not see it. The page itself has no data.
//! - A request names a loopback host: a page of another site whose name leads to this address (DNS rebinding) gets
//!   nothing. No other origin may read or frame an answer.
//! - Scripts come from this program alone, and the page sets names of functions as text.

mod files;
mod rates;
mod state;
mod traces;

use std::io;
use std::net::{IpAddr, SocketAddr};

use cwasi_config::NodeConfig;
use cwasi_host::http::HttpLimits;
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::server::{HttpServer, Service};
use cwasi_host::http::status::sentence;
use cwasi_sys::random::bytes16;
use hyper::body::Incoming;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use tokio::net::TcpListener;

use self::rates::Rates;
use self::traces::RecentTraces;
use crate::access::Access;
use crate::arguments::Global;
use crate::failure::{Exit, Failure};
use crate::http::{content, reading};
use crate::interrupt::Interrupt;
use crate::output;

/// The page, its style and its scripts.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("app.js")),
    ("/traces.js", "text/javascript; charset=utf-8", include_str!("traces.js")),
];
/// Below it is each trace by its id.
const TRACES: &str = "/api/traces";
/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];
/// Most connections: a few browsers.
const CONNECTIONS_MAX: usize = 64;

/// Serves until SIGTERM or SIGINT. Prints the address with the token to stderr when it listens.
///
/// # Errors
/// When the address is no loopback address, or is taken.
pub async fn serve(global: Global, node: NodeConfig, listen: SocketAddr) -> Result<(), Failure> {
    if !listen.ip().is_loopback() {
        let text = format!(
            "{listen} is reachable from other hosts, and the dashboard has no TLS: listen on 127.0.0.1 and use \
             ssh -L {port}:127.0.0.1:{port} HOST",
            port = listen.port()
        );
        return Err(Failure::text(Exit::Usage, text));
    }
    let mut interrupt = Interrupt::new()?;
    let failed = |error: io::Error| {
        Failure::text(Exit::Unavailable, format!("cannot listen on {listen}: {error}"))
    };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let token = hex::encode(bytes16());
    output::note(format_args!("cwasi dashboard: http://{}/#{token}", listener.local_addr()?));
    let limits = HttpLimits { connections: CONNECTIONS_MAX, ..HttpLimits::default() };
    let stop = async move {
        // A server that is asked to stop has done its work.
        let _signal = interrupt.received().await;
    };
    let rates = Rates::start(node.state_dir.clone(), global.namespace.clone());
    let dashboard = Dashboard {
        access: Access::of(&token),
        global,
        node,
        rates,
        traces: RecentTraces::default(),
    };
    HttpServer { listener, tls: None, limits }.serve(dashboard, stop).await;
    Ok(())
}

#[derive(Clone)]
struct Dashboard {
    access: Access,
    global: Global,
    node: NodeConfig,
    rates: Rates,
    traces: RecentTraces,
}

impl Service for Dashboard {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let mut response = if host.is_some_and(names_this_host) {
            self.read(&request).await
        } else {
            let text = "open the dashboard as http://127.0.0.1 or http://localhost";
            sentence(StatusCode::FORBIDDEN, text)
        };
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Dashboard {
    async fn read(&self, request: &Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path();
        if let Some((_, kind, text)) = FILES.into_iter().find(|(known, ..)| *known == path) {
            return reading(request.method(), || content(kind, text));
        }
        let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        if !self.access.admits(authorization) {
            return unauthorized();
        }
        match path {
            "/api/state" => {
                let state = state::read(&self.global, &self.node, &self.rates).await;
                reading(request.method(), || json(&state))
            }
            TRACES => {
                let list = self.traces.list(&self.node.state_dir, &self.global.namespace).await;
                reading(request.method(), || json(&list))
            }
            _ => match path.strip_prefix(TRACES).and_then(|rest| rest.strip_prefix('/')) {
                Some(id) => self.trace(id, request.method()).await,
                None => sentence(StatusCode::NOT_FOUND, "there is no such page"),
            },
        }
    }

    async fn trace(&self, id: &str, method: &Method) -> Response<ResponseBody> {
        let (state_dir, namespace) = (&self.node.state_dir, &self.global.namespace);
        match self.traces.waterfall(state_dir, namespace, id).await {
            Some(waterfall) => reading(method, || json(&waterfall)),
            None => {
                let text = "there is no such trace among the newest ones: try cwasi trace ID";
                sentence(StatusCode::NOT_FOUND, text)
            }
        }
    }
}

fn unauthorized() -> Response<ResponseBody> {
    let text = "open the address that cwasi dashboard printed, with all that follows the #";
    let mut response = sentence(StatusCode::UNAUTHORIZED, text);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// True for loopback addresses and `localhost`, with any port: a tunnel has another one.
fn names_this_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    !host.contains('@') && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

fn json(value: &impl Serialize) -> Response<ResponseBody> {
    match serde_json::to_vec(value) {
        Ok(text) => content("application/json", text),
        Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_served() {
        for host in
            ["127.0.0.1", "127.0.0.1:8099", "127.8.8.8", "[::1]:1", "localhost:80", "LOCALHOST"]
        {
            assert!(names_this_host(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "0.0.0.0",
            "a@localhost",
            "10.0.0.1",
            "[::]",
        ] {
            assert!(!names_this_host(host), "{host}");
        }
    }

    #[test]
    fn the_page_has_nothing_inline_and_nothing_from_elsewhere() {
        let [(.., page), _style, scripts @ ..] = FILES;
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" on"));
        assert_eq!(page.matches("<script").count(), scripts.len());
        for (path, _, script) in scripts {
            assert!(page.contains(&format!("<script src=\"{path}\"")), "{path}");
            for word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
                assert!(!script.contains(word), "{path}: {word}");
            }
        }
        let web = |text: &str| text.replace("http://www.w3.org/2000/svg", "").contains("://");
        assert!(!FILES.into_iter().any(|(.., text)| web(text)));
    }
}
