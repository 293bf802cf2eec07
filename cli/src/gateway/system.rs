//! `/system`: what `faas-cli` asks OpenFaaS for. Reading is served; what would change functions, secrets or namespaces is
//! answered with a sentence.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use cwasi_host::caller::{HostCaller, ReachableFunction};
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::status::sentence;
use hyper::{Method, Response, StatusCode, Uri};
use serde::Serialize;
use serde_json::json;

use super::logs::{LogQuery, Logs};
use super::metrics::Metrics;
use super::namespaces::Namespaces;
use crate::http::content;

/// What is said about requests that would change something.
const UNSERVED: &str = "this gateway calls functions and shows them: cwasi deploy, or another client of containerd, \
                        makes, scales and removes them, and there are no secrets, namespaces and tokens to change here";

/// The answers; clones share what they count.
#[derive(Clone)]
pub(super) struct System {
    pub(super) caller: HostCaller,
    pub(super) namespaces: Namespaces,
    pub(super) metrics: Metrics,
    pub(super) logs: Logs,
}

/// One function, with OpenFaaS' names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FunctionStatus {
    name: String,
    namespace: String,
    /// The gateway does not ask containerd.
    image: &'static str,
    invocation_count: u64,
    replicas: usize,
    available_replicas: usize,
}

impl System {
    /// Answers a request for `/system/REST`.
    pub(super) fn answer(&self, method: &Method, rest: &str, uri: &Uri) -> Response<ResponseBody> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return unserved();
        }
        let query = Query::of(uri);
        let asked = query.get("namespace").unwrap_or_default();
        let namespace = self.namespaces.resolve(&self.caller, &asked);
        match rest.split_once('/').map_or((rest, ""), |(kind, name)| (kind, name)) {
            ("functions", "") => self.functions(namespace),
            ("function", name) => self.function(namespace, name),
            ("logs", "") => self.logs(namespace, &query),
            ("namespaces", "") => json(&[self.namespaces.own()]),
            ("namespace", name) if name == self.namespaces.own() => {
                json(&json!({ "name": name, "labels": {}, "annotations": {} }))
            }
            ("namespace", _) => {
                sentence(StatusCode::NOT_FOUND, "this gateway does not serve this namespace")
            }
            ("info", "") => info(),
            // Functions of CWASI have no secrets of their own: the list is empty.
            ("secrets", "") => json::<[(); 0]>(&[]),
            _ => unserved(),
        }
    }

    fn functions(&self, namespace: &str) -> Response<ResponseBody> {
        match self.caller.functions(namespace) {
            Ok(functions) => {
                json(&functions.into_iter().map(|one| self.status(one)).collect::<Vec<_>>())
            }
            Err(error) => unreadable(&error),
        }
    }

    fn function(&self, namespace: &str, name: &str) -> Response<ResponseBody> {
        match self.caller.functions(namespace) {
            Ok(functions) => match functions.into_iter().find(|function| function.name == name) {
                Some(function) => json(&self.status(function)),
                None => {
                    let text = "no function of this name takes HTTP calls on this node";
                    sentence(StatusCode::NOT_FOUND, text)
                }
            },
            Err(error) => unreadable(&error),
        }
    }

    fn status(&self, function: ReachableFunction) -> FunctionStatus {
        let ReachableFunction { name, namespace, instances } = function;
        let invocation_count = self.metrics.calls(&self.namespaces.target(&namespace, &name));
        let (replicas, available_replicas) = (instances, instances);
        FunctionStatus {
            name,
            namespace,
            image: "",
            invocation_count,
            replicas,
            available_replicas,
        }
    }

    fn logs(&self, namespace: &str, query: &Query) -> Response<ResponseBody> {
        let since = query.get("since").map(|text| time(&text));
        if since == Some(None) {
            return sentence(
                StatusCode::BAD_REQUEST,
                "since is no time such as 2026-11-23T04:31:45Z",
            );
        }
        let log_query = LogQuery {
            follow: query.get("follow").is_some_and(|text| matches!(&*text, "true" | "1")),
            since: since.flatten(),
            // faas-cli says -1 for all.
            tail: query.get("tail").and_then(|text| text.parse().ok()).filter(|tail| *tail > 0),
        };
        let name = query.get("name").unwrap_or_default();
        match self.caller.instances(&self.namespaces.target(namespace, &name)) {
            Ok(mut records) => {
                if let Some(instance) = query.get("instance") {
                    records.retain(|record| record.container == instance);
                }
                self.logs.stream(records, log_query)
            }
            Err(error) => unreadable(&error),
        }
    }
}

/// The answer to what is not served.
pub(super) fn unserved() -> Response<ResponseBody> {
    sentence(StatusCode::NOT_IMPLEMENTED, UNSERVED)
}

fn unreadable(error: &dyn std::error::Error) -> Response<ResponseBody> {
    tracing::warn!(%error, "the list of functions cannot be read");
    sentence(StatusCode::INTERNAL_SERVER_ERROR, "a fault of the host")
}

fn info() -> Response<ResponseBody> {
    let version = json!({ "release": env!("CARGO_PKG_VERSION"), "sha": "" });
    json(&json!({
        "arch": std::env::consts::ARCH,
        "provider": { "provider": "cwasi", "orchestration": "containerd", "version": version },
        "version": version,
    }))
}

fn json<T: Serialize + ?Sized>(value: &T) -> Response<ResponseBody> {
    match serde_json::to_string(value) {
        Ok(json) => content("application/json", json),
        Err(error) => sentence(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// The pairs behind a URL's question mark.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        // Only its query counts.
        let url =
            reqwest::Url::parse(&format!("http://gateway/?{}", uri.query().unwrap_or_default()));
        let pairs = url.iter().flat_map(reqwest::Url::query_pairs);
        Self(pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
    }

    fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        let found = self.0.iter().find(|(known, value)| known == key && !value.is_empty());
        found.map(|(_, value)| Cow::Borrowed(value.as_str()))
    }
}

/// A time as RFC 3339 writes it, with any offset.
fn time(text: &str) -> Option<SystemTime> {
    if let Ok(time) = humantime::parse_rfc3339(text) {
        return Some(time);
    }
    let (local, offset) = text.split_at_checked(text.len().checked_sub("+00:00".len())?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let minutes = 60 * hours.parse::<u64>().ok()? + minutes.parse::<u64>().ok()?;
    let (time, offset_length) =
        (humantime::parse_rfc3339(&format!("{local}Z")).ok()?, Duration::from_secs(60 * minutes));
    match offset.as_bytes().first()? {
        b'+' => time.checked_sub(offset_length),
        b'-' => time.checked_add(offset_length),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_any_offset() {
        let expected = humantime::parse_rfc3339("2026-11-23T04:31:45Z").ok();
        for text in
            ["2026-11-23T04:31:45Z", "2026-11-23T05:31:45+01:00", "2026-11-23T01:01:45-03:30"]
        {
            assert_eq!(time(text), expected, "{text}");
        }
        for text in ["", "soon", "+01:00", "2026-11-23T05:31:45*01:00", "2026-11-23T05:31:45+ä:00"]
        {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn a_query_is_decoded() {
        let query = Query::of(&"/system/logs?name=a%2Eb&follow=&namespace=n+m".parse().unwrap());
        assert_eq!(query.get("name").as_deref(), Some("a.b"));
        assert_eq!(query.get("namespace").as_deref(), Some("n m"));
        assert_eq!((query.get("follow"), query.get("tail")), (None, None));
    }
}
