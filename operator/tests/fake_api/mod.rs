//! An API server in memory: it lists by label, stores what is applied, deletes, and refuses what a test says.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By path.
    objects: BTreeMap<String, Value>,
    refused: BTreeMap<String, String>,
    /// Method and path.
    requests: Vec<String>,
}

impl FakeApi {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Client::new(service, "n")
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    pub fn put(&self, path: &str, object: Value) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), object);
    }

    /// Refuses to apply this object, or to list these.
    pub fn refuse(&self, path: &str, message: &str) {
        self.state.lock().unwrap().refused.insert(path.to_owned(), message.to_owned());
    }

    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    pub fn forget_requests(&self) {
        self.state.lock().unwrap().requests.clear();
    }

    /// Paths with this beginning.
    pub fn below(&self, prefix: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.objects.keys().filter(|path| path.starts_with(prefix)).cloned().collect()
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = head.uri.path().trim_end_matches('/').to_owned();
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{} {path}", head.method));
        let (status, answer) = match head.method {
            Method::GET if selector(head.uri.query()).is_some() => {
                state.list(&path, &selector(head.uri.query()).unwrap_or_default())
            }
            Method::GET => {
                state.objects.get(&path).map_or_else(missing, |it| (StatusCode::OK, it.clone()))
            }
            Method::PATCH => state.apply(&path, body),
            Method::DELETE => {
                state.objects.remove(&path).map_or_else(missing, |it| (StatusCode::OK, it))
            }
            // Events.
            _ => (StatusCode::CREATED, body),
        };
        let answer = Body::from(answer.to_string().into_bytes());
        Response::builder().status(status).body(answer).unwrap()
    }
}

impl State {
    /// Objects with a label of this value.
    fn list(&self, path: &str, (label, value): &(String, String)) -> (StatusCode, Value) {
        if let Some(message) = self.refused.get(path) {
            return forbidden(message);
        }
        let prefix = format!("{path}/");
        let labelled = |it: &&Value| it["metadata"]["labels"][label] == **value;
        let below = self.objects.iter().filter(|(path, _)| path.starts_with(&prefix));
        let items: Vec<_> = below.map(|(_, object)| object).filter(labelled).cloned().collect();
        (
            StatusCode::OK,
            json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items }),
        )
    }

    /// What is applied replaces what was there, but for the status, which is a resource of its own.
    fn apply(&mut self, path: &str, mut body: Value) -> (StatusCode, Value) {
        if let Some(message) = self.refused.get(path) {
            return forbidden(message);
        }
        if let Some(path) = path.strip_suffix("/status") {
            let object = self.objects.get_mut(path).unwrap();
            merge(&mut object["status"], body["status"].take());
            return (StatusCode::OK, object.clone());
        }
        if let Some(before) = self.objects.get(path) {
            body["status"] = before["status"].clone();
        }
        self.objects.insert(path.to_owned(), body.clone());
        (StatusCode::OK, body)
    }
}

/// The label and the value that a list is to have.
fn selector(query: Option<&str>) -> Option<(String, String)> {
    let mut parts = query?.split('&');
    let selector = parts.find_map(|it| it.strip_prefix("labelSelector="))?;
    let selector = selector.replace("%3D", "=").replace("%2F", "/");
    let (label, value) = selector.split_once('=')?;
    Some((label.to_owned(), value.to_owned()))
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

fn forbidden(message: &str) -> (StatusCode, Value) {
    let text = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "code": 403,
    });
    (StatusCode::FORBIDDEN, text)
}

fn missing() -> (StatusCode, Value) {
    let text = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "there is no such object", "reason": "NotFound", "code": 404,
    });
    (StatusCode::NOT_FOUND, text)
}
