//! Kubernetes' API in memory, for tests: it lists by label, applies for several managers, deletes with all that belongs
//! to it, serves logs and exec, and refuses what a test says. As a client of this process, or by HTTP.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod applied;
mod exec;
mod http_server;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use applied::Applied;
pub use exec::{Executed, Ran};

/// A cluster's API; clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By path.
    objects: BTreeMap<String, Value>,
    /// By path.
    applied: BTreeMap<String, Applied>,
    /// By path of the pod, and container.
    logs: BTreeMap<(String, String), String>,
    refused: BTreeMap<String, String>,
    /// Of this manager no Deployment is taken.
    refused_manager: String,
    /// Path and status of requests that are refused, whatever their method.
    denied: BTreeMap<String, (StatusCode, String)>,
    /// Beginning of the paths that it does not know; empty for none.
    lacked: String,
    /// Method and path.
    requests: Vec<String>,
    /// Of the last write of an object.
    version: u64,
    exec: Option<exec::Handler>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("objects", &self.objects.keys()).finish_non_exhaustive()
    }
}

/// An answer: JSON, or a log's text.
enum Answer {
    Json(StatusCode, Value),
    Text(String),
}

impl FakeApi {
    /// A client of this process, in the namespace `n`.
    #[must_use]
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (status, _kind, body) = api.answer(&head.method, &head.uri, &body);
                let response = Response::builder().status(status).body(Body::from(body)).unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "n")
    }

    /// An object, by its path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Writes an object. One that has a version gets the next one.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state.lock().unwrap();
        if !object["metadata"]["resourceVersion"].is_null() {
            object["metadata"]["resourceVersion"] = state.next_version();
        }
        state.objects.insert(path.to_owned(), object);
    }

    /// Removes an object, and nothing else.
    pub fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    /// Writes the log of a container, by the path of its pod.
    pub fn put_log(&self, pod: &str, container: &str, text: &str) {
        let key = (pod.to_owned(), container.to_owned());
        self.state.lock().unwrap().logs.insert(key, text.to_owned());
    }

    /// Refuses to apply this object, or to list these.
    pub fn refuse(&self, path: &str, message: &str) {
        self.state.lock().unwrap().refused.insert(path.to_owned(), message.to_owned());
    }

    /// Refuses what this manager applies of Deployments.
    pub fn refuse_manager(&self, manager: &str) {
        manager.clone_into(&mut self.state.lock().unwrap().refused_manager);
    }

    /// Answers requests to exactly this path with an error.
    pub fn deny(&self, path: &str, status: StatusCode, message: &str) {
        let denied = (status, message.to_owned());
        self.state.lock().unwrap().denied.insert(path.to_owned(), denied);
    }

    /// Knows no path with this beginning any more.
    pub fn lack(&self, prefix: &str) {
        prefix.clone_into(&mut self.state.lock().unwrap().lacked);
    }

    /// What exec runs.
    pub fn on_exec(&self, run: impl Fn(Executed) -> Ran + Send + Sync + 'static) {
        self.state.lock().unwrap().exec = Some(Arc::new(run));
    }

    /// Methods and paths of the requests until now.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn forget_requests(&self) {
        self.state.lock().unwrap().requests.clear();
    }

    /// Paths with this beginning.
    #[must_use]
    pub fn below(&self, prefix: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.objects.keys().filter(|path| path.starts_with(prefix)).cloned().collect()
    }

    /// Status, content type and body.
    fn answer(
        &self,
        method: &Method,
        uri: &Uri,
        body: &[u8],
    ) -> (StatusCode, &'static str, Vec<u8>) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let path = uri.path().trim_end_matches('/').to_owned();
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{method} {path}"));
        match state.answer(method, &path, uri, body) {
            Answer::Json(status, value) => {
                (status, "application/json", value.to_string().into_bytes())
            }
            Answer::Text(text) => (StatusCode::OK, "text/plain", text.into_bytes()),
        }
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, uri: &Uri, body: Value) -> Answer {
        if let Some((status, message)) = self.denied.get(path) {
            return error(*status, message);
        }
        if !self.lacked.is_empty() && path.starts_with(&self.lacked) {
            return missing();
        }
        match *method {
            Method::GET if path.ends_with("/log") => self.log(path, uri),
            Method::GET if is_list(path) => self.list(path, &query(uri, "labelSelector")),
            Method::GET => {
                let found = self.objects.get(path);
                found.map_or_else(missing, |it| Answer::Json(StatusCode::OK, it.clone()))
            }
            Method::PATCH => self.apply(path, &query(uri, "fieldManager"), body),
            Method::DELETE => self.delete(path, &body["preconditions"]["uid"]),
            // Events.
            _ => Answer::Json(StatusCode::CREATED, body),
        }
    }

    /// Objects with labels: `key=value` or `key`, of which there is one; `""` = all.
    fn list(&self, path: &str, selector: &str) -> Answer {
        if let Some(message) = self.refused.get(path) {
            return error(StatusCode::FORBIDDEN, message);
        }
        let prefix = format!("{path}/");
        let (key, value) = match selector.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (selector, None),
        };
        let is_selected = |object: &&Value| match &object["metadata"]["labels"][key] {
            _ if selector.is_empty() => true,
            Value::String(label) => value.is_none_or(|value| value == label),
            _ => false,
        };
        let below = self.objects.iter().filter(|(path, _)| path.starts_with(&prefix));
        let items: Vec<_> = below.map(|(_, object)| object).filter(is_selected).cloned().collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items });
        Answer::Json(StatusCode::OK, list)
    }

    fn log(&self, path: &str, uri: &Uri) -> Answer {
        let pod = path.trim_end_matches("/log").to_owned();
        let container = query(uri, "container");
        let Some(text) = self.logs.get(&(pod, container.clone())) else {
            let message =
                format!("container \"{container}\" is waiting to start: ContainerCreating");
            return error(StatusCode::BAD_REQUEST, &message);
        };
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let tail = query(uri, "tailLines").parse().unwrap_or(lines.len()).min(lines.len());
        let has_times = query(uri, "timestamps") == "true";
        let time = if has_times { "2026-11-23T04:31:45.123456789Z " } else { "" };
        let shown = lines[lines.len() - tail..].iter().map(|line| format!("{time}{line}"));
        Answer::Text(shown.collect())
    }

    /// Objects that `owner` owns go with it.
    fn collect_garbage(&mut self, owner: &Value) {
        let Some(uid) = owner["metadata"]["uid"].as_str() else { return };
        let is_owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|it| it["uid"] == uid)
        };
        let owned: Vec<_> = self
            .objects
            .iter()
            .filter(|(_, object)| is_owned(object))
            .map(|(path, _)| path.clone())
            .collect();
        for path in owned {
            if let Some(object) = self.objects.remove(&path) {
                self.collect_garbage(&object);
            }
        }
    }

    fn next_version(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    fn delete(&mut self, path: &str, uid: &Value) -> Answer {
        let Some(object) = self.objects.get(path) else { return missing() };
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return error(StatusCode::CONFLICT, "Precondition failed: UID");
        }
        self.applied.remove(path);
        let object = self.objects.remove(path).unwrap();
        self.collect_garbage(&object);
        Answer::Json(StatusCode::OK, object)
    }

    /// The status is a resource of its own.
    fn apply(&mut self, path: &str, manager: &str, mut body: Value) -> Answer {
        if let Some(message) = self.refused.get(path) {
            return error(StatusCode::FORBIDDEN, message);
        }
        if manager == self.refused_manager && path.contains("/deployments/") {
            return error(StatusCode::UNPROCESSABLE_ENTITY, "it is invalid");
        }
        if let Some(path) = path.strip_suffix("/status") {
            let object = self.objects.get_mut(path).unwrap();
            merge(&mut object["status"], body["status"].take());
            return Answer::Json(StatusCode::OK, object.clone());
        }
        let before = self.objects.get(path).cloned().unwrap_or_default();
        let version = body["metadata"]["resourceVersion"].take();
        if !version.is_null() && version != before["metadata"]["resourceVersion"] {
            return error(StatusCode::CONFLICT, "the object has been modified");
        }
        body["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let mut object = before.clone();
        self.applied.entry(path.to_owned()).or_default().apply(&mut object, manager, body);
        // What changes nothing leaves the version as it is.
        if object != before {
            object["metadata"]["resourceVersion"] = self.next_version();
        }
        if before.is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(path.to_owned(), object.clone());
        Answer::Json(StatusCode::OK, object)
    }
}

/// Two managers write a status: fields of one stay when the other one writes, and conditions are told by their types.
fn merge(status: &mut Value, new: Value) {
    let Value::Object(new) = new else { panic!("{new} is no status") };
    if status.is_null() {
        *status = json!({});
    }
    for (key, value) in new {
        match (&mut status[&key], value) {
            (Value::Array(before), Value::Array(now)) if key == "conditions" => {
                before.retain(|it| now.iter().all(|now| now["type"] != it["type"]));
                before.extend(now);
            }
            (before, now) => *before = now,
        }
    }
}

/// True for the path of all objects of a kind in a namespace: `…/namespaces/NAME/KIND`.
fn is_list(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    parts.iter().rposition(|part| *part == "namespaces").is_some_and(|at| parts.len() == at + 3)
}

/// A value of the query; empty without it.
fn query(uri: &Uri, key: &str) -> String {
    let pairs = url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    let mut values = pairs.filter(|(name, _)| name == key).map(|(_, value)| value.into_owned());
    values.next().unwrap_or_default()
}

fn missing() -> Answer {
    error(StatusCode::NOT_FOUND, "there is no such object")
}

fn error(status: StatusCode, message: &str) -> Answer {
    let reason = match status {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::CONFLICT => "Conflict",
        _ => "BadRequest",
    };
    let text = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": status.as_u16(),
    });
    Answer::Json(status, text)
}
