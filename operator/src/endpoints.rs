//! `/metrics` for Prometheus, `/healthz` and `/readyz` for the kubelet.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;
use tracing::warn;

/// Longest time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// What the operator counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Family<[(&'static str, &'static str); 1], Counter>,
    seconds: Histogram,
    scrapes: Family<[(&'static str, &'static str); 1], Counter>,
    leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cwasi_operator");
        let reconciles = Family::default();
        registry.register("reconciles", "Workflows reconciled, by result", reconciles.clone());
        // From 1 ms to 16 s.
        let seconds = Histogram::new(exponential_buckets(0.001, 2.0, 15));
        registry.register_with_unit(
            "reconcile",
            "Time to reconcile a Workflow once",
            Unit::Seconds,
            seconds.clone(),
        );
        let scrapes = Family::default();
        registry.register(
            "scrapes",
            "Questions to nodes for their metrics, by result",
            scrapes.clone(),
        );
        let leader = Gauge::default();
        registry.register("leader", "1 if this process is the one that works", leader.clone());
        Self { registry: Arc::new(registry), reconciles, seconds, scrapes, leader }
    }
}

impl Metrics {
    pub fn reconciled(&self, is_ok: bool, took: Duration) {
        self.reconciles.get_or_create(&[("result", result(is_ok))]).inc();
        self.seconds.observe(took.as_secs_f64());
    }

    pub fn scraped(&self, is_ok: bool) {
        self.scrapes.get_or_create(&[("result", result(is_ok))]).inc();
    }

    pub fn lead(&self) {
        self.leader.set(1);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a String takes everything");
        text
    }
}

const fn result(is_ok: bool) -> &'static str {
    if is_ok { "ok" } else { "error" }
}

/// Serves until the process ends.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: SocketAddr, metrics: Metrics) -> io::Result<Infallible> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let metrics = metrics.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answered = answer(&request, &metrics);
                async move { Ok::<_, Infallible>(answered) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(hyper_util::rt::TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}

fn answer(request: &Request<Incoming>, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, metrics.text()),
        (&Method::GET, "/healthz" | "/readyz") => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}
