//! The API by HTTP, for programs: on a thread of its own until the test's process ends.

use std::net::SocketAddr;
use std::sync::mpsc;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::{FakeApi, exec};

impl FakeApi {
    /// Serves it on this host.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        let (sender, address) = mpsc::channel();
        let api = self.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (stream, _client) = listener.accept().await.unwrap();
                    let api = api.clone();
                    let service = service_fn(move |request| serve(api.clone(), request));
                    let connection =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(connection.with_upgrades());
                }
            });
        });
        address.recv().unwrap()
    }

    /// A configuration of kubectl's for this API, whose only context is `fake` in the namespace `n`.
    #[must_use]
    pub fn kubeconfig(address: SocketAddr) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: fake\n\
             contexts: [{{name: fake, context: {{cluster: fake, user: fake, namespace: n}}}}]\n\
             clusters: [{{name: fake, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: fake, user: {{}}}}]\n"
        )
    }
}

async fn serve(
    api: FakeApi,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let handler = api.state.lock().unwrap().exec.clone();
    if request.uri().path().ends_with("/exec")
        && let Some(handler) = handler
        && !api.state.lock().unwrap().denied.contains_key(request.uri().path())
    {
        let path = request.uri().path().to_owned();
        api.state.lock().unwrap().requests.push(format!("{} {path}", request.method()));
        return Ok(exec::upgrade(request, handler));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let (status, kind, body) = api.answer(&head.method, &head.uri, &body);
    let response = Response::builder().status(status).header("content-type", kind);
    Ok(response.body(Full::from(body)).unwrap())
}
