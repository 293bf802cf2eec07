//! exec by WebSocket, version 4 of Kubernetes' protocol: each message begins with the number of its stream.

use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

const PROTOCOL: &str = "v4.channel.k8s.io";
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// What runs a command.
pub(super) type Handler = Arc<dyn Fn(Executed) -> Ran + Send + Sync>;

/// A command that was executed in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Path of its pod.
    pub pod: String,
    pub container: String,
    pub command: Vec<String>,
    /// As many bytes of stdin as the handler's first answer asked for.
    pub stdin: Vec<u8>,
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: u8,
    /// Bytes of stdin without which it does not run: the handler is asked again when they are there.
    pub needs: usize,
    /// The connection breaks before the end is known.
    pub breaks: bool,
}

/// Switches the protocol, and runs the command.
pub(super) fn upgrade(request: Request<Incoming>, handler: Handler) -> Response<Full<Bytes>> {
    let key = request.headers()[SEC_WEBSOCKET_KEY].as_bytes();
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .header(SEC_WEBSOCKET_ACCEPT, derive_accept_key(key));
    tokio::spawn(run(request, handler));
    response.body(Full::default()).unwrap()
}

async fn run(request: Request<Incoming>, handler: Handler) {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let pairs: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let values = |key: &'static str| {
        pairs.iter().filter(move |(name, _)| name == key).map(|(_, it)| it.clone())
    };
    let mut executed = Executed {
        pod: request.uri().path().trim_end_matches("/exec").to_owned(),
        container: values("container").next().unwrap_or_default(),
        command: values("command").collect(),
        stdin: Vec::new(),
    };
    let upgraded = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
    let ran = loop {
        let ran = handler(executed.clone());
        if executed.stdin.len() >= ran.needs {
            break ran;
        }
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) if bytes[0] == 0 => {
                executed.stdin.extend_from_slice(&bytes[1..])
            }
            _ => {}
        }
    };
    for (stream, bytes) in [(STDOUT, ran.stdout), (STDERR, ran.stderr)] {
        send(&mut socket, stream, &bytes).await;
    }
    if ran.breaks {
        return;
    }
    send(&mut socket, STATUS, status(ran.code).to_string().as_bytes()).await;
    // The client ends the connection.
    while let Some(Ok(_)) = socket.next().await {}
}

async fn send<S>(socket: &mut WebSocketStream<S>, stream: u8, bytes: &[u8])
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let message = [&[stream], bytes].concat();
    // A client that was interrupted is away.
    let _away = socket.send(Message::binary(message)).await;
}

fn status(code: u8) -> Value {
    if code == 0 {
        return json!({ "metadata": {}, "status": "Success" });
    }
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}
