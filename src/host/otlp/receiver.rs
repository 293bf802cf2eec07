//! The OTLP receiver: one HTTP request for each batch.

use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message as _;
use tokio::net::TcpStream;

use cwasi_config::traces::OtlpUrl;

/// Most bytes of a receiver's response that are read.
const RESPONSE_MAX: usize = 64 << 10;
/// Most bytes of its reason that are logged.
const REASON_MAX: usize = 500;
const USER_AGENT_VALUE: &str = concat!("cwasi/", env!("CARGO_PKG_VERSION"));
const PROTOBUF: &str = "application/x-protobuf";

/// Why the receiver did not take a batch.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("{operation}: {reason}")]
    Failed { operation: &'static str, reason: String },
    #[error("the receiver answered {0}")]
    Refused(StatusCode),
}

impl ExportError {
    pub(super) fn failed(operation: &'static str, reason: impl ToString) -> Self {
        Self::Failed { operation, reason: reason.to_string() }
    }

    /// True if the same batch may be taken later (OTLP specification).
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::Failed { .. } => true,
            Self::Refused(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
        }
    }
}

/// Where spans are sent.
pub(super) struct OtlpReceiver {
    url: OtlpUrl,
}

impl OtlpReceiver {
    pub(super) const fn new(url: OtlpUrl) -> Self {
        Self { url }
    }

    pub(super) fn authority(&self) -> String {
        self.url.authority()
    }

    /// Sends one request and reads its response.
    pub(super) async fn post(&self, body: Bytes) -> Result<(), ExportError> {
        let authority = self.url.authority();
        let stream = TcpStream::connect(&authority).await;
        let stream = stream.map_err(|error| ExportError::failed("connecting", error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|error| ExportError::failed("connecting", error))?;
        let request = Request::post(self.url.path())
            .header(HOST, authority)
            .header(USER_AGENT, USER_AGENT_VALUE)
            .header(CONTENT_TYPE, PROTOBUF)
            .body(Full::new(body))
            .map_err(|error| ExportError::failed("making a request", error))?;
        // Takes the sender with it: at its end the connection has no user any more and ends, too.
        let exchange = async move {
            let response = sender.send_request(request).await;
            let response = response.map_err(|error| ExportError::failed("sending", error))?;
            let status = response.status();
            // Read to its end, so that the receiver sees an orderly one. A response beyond the bound says nothing.
            let read = Limited::new(response.into_body(), RESPONSE_MAX).collect().await;
            Ok((status, read.map(Collected::to_bytes).unwrap_or_default()))
        };
        // A receiver may answer and close at once: the answer counts, whichever is seen first.
        let (answered, _ended) = tokio::join!(exchange, connection);
        let (status, body) = answered?;
        if !status.is_success() {
            return Err(ExportError::Refused(status));
        }
        if let Some((rejected, reason)) = rejected(&body) {
            tracing::warn!(receiver = self.url.authority(), rejected, reason, "spans are rejected");
        }
        Ok(())
    }
}

/// How many spans of a batch the receiver has rejected, and why; they must not be sent again (OTLP specification).
fn rejected(body: &[u8]) -> Option<(i64, String)> {
    let response = ExportTraceServiceResponse::decode(body).ok()?;
    let ExportTracePartialSuccess { rejected_spans, mut error_message } =
        response.partial_success?;
    error_message.truncate(error_message.floor_char_boundary(REASON_MAX));
    (rejected_spans > 0 || !error_message.is_empty()).then_some((rejected_spans, error_message))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_answer_counts_when_the_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).try_into().unwrap();
        let otlp = OtlpReceiver { url };
        // Which end is seen first is chance.
        for _ in 0..32 {
            let receiver = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut read = Vec::new();
                while !read.ends_with(b"spans") {
                    stream.read_buf(&mut read).await.unwrap();
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            };
            let (sent, ()) = tokio::join!(otlp.post(Bytes::from_static(b"spans")), receiver);
            sent.unwrap();
        }
    }

    #[tokio::test]
    async fn a_response_without_end_is_read_within_its_bound() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).try_into().unwrap();
        let otlp = OtlpReceiver { url };
        let receiver = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"spans") {
                stream.read_buf(&mut read).await.unwrap();
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                .await
                .unwrap();
            let mut sent = 0;
            // Until the client has enough of it.
            while stream
                .write_all(format!("1000\r\n{}\r\n", "x".repeat(4096)).as_bytes())
                .await
                .is_ok()
            {
                sent += 4096;
                assert!(sent < 64 << 20, "it reads without a bound");
            }
        };
        let (sent, ()) = tokio::join!(otlp.post(Bytes::from_static(b"spans")), receiver);
        sent.unwrap();
    }

    #[test]
    fn rejected_spans_are_counted() {
        let response = |rejected_spans, message: &str| {
            let error_message = message.to_owned();
            let partial = ExportTracePartialSuccess { rejected_spans, error_message };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(rejected(&response(3, "too old")), Some((3, "too old".to_owned())));
        assert_eq!(rejected(&response(0, "")), None);
        assert_eq!(rejected(b""), None);
        assert_eq!(rejected(&[0xff; 9]), None);
        let (_, reason) = rejected(&response(1, &"é".repeat(REASON_MAX))).unwrap();
        assert_eq!(reason.len(), REASON_MAX);
    }

    #[test]
    fn only_temporary_errors_are_retried() {
        for (status, again) in [(429, true), (503, true), (400, false), (404, false), (500, false)]
        {
            let error = ExportError::Refused(StatusCode::from_u16(status).unwrap());
            assert_eq!(error.is_temporary(), again, "{status}");
        }
        assert!(ExportError::failed("connecting", "refused").is_temporary());
    }
}
