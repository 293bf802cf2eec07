//! KEDA's external scaler (`external-push`) for functions that are started on demand: whether a function has calls or
//! messages, pushed when that changes, and how many. KEDA decides about pods, from 0 to 1 and back itself, from 1 to N
//! by an HPA.
//!
//! - `asked`: the function that KEDA asks for, and its messages in Redis.
//! - [`demand`]: calls, as shims publish them. [`announcer`]: tells shims which functions are started on demand.
//! - `incoming`: connections within bounds: the port has no login.
//! - [`messages`]: the protocol's. The service is generated (`operator/build.rs`).
//!
//! Invariant: it says that a function has no calls only if it would know of them. Without Redis, and for a moment after
//! it is back, the answer is an error, on which KEDA ends no pod: local calls go on without Redis.

pub mod announcer;
mod asked;
pub mod demand;
mod incoming;
pub mod messages;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cwasi_networked::demand::{BELIEVED, CHANNEL};
use cwasi_networked::link::LinkError;
use cwasi_networked::streams::waiting::Waiting;
use cwasi_networked::{RedisLink, RedisTarget};
use futures_util::Stream;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use self::asked::{Asked, Look};
use self::demand::DemandTable;
use self::generated::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use self::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};

/// Keys of the trigger's metadata: the function's name, and the calls that a pod has on average.
pub const FUNCTION: &str = "function";
pub const CALLS: &str = "calls";
/// And the streams of others that run it, with commas.
pub const STREAMS: &str = "streams";
/// Name of the metric.
const METRIC: &str = "calls";
/// How often a stream looks whether a function's calls have ended, or messages wait: no message tells.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Most streams of one connection, and of all; KEDA has one for each ScaledObject.
const CONNECTION_STREAMS_MAX: u32 = 1024;
const STREAMS_MAX: usize = 4096;
/// Longest answer to a single question.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often a client is asked whether it is there, and how long it has to answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_MAX: Duration = Duration::from_secs(10);

/// The generated service.
pub mod generated {
    #![expect(clippy::too_many_lines, reason = "it is generated")]
    include!(concat!(env!("OUT_DIR"), "/externalscaler.ExternalScaler.rs"));
}

/// The scaler does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("its port cannot be listened on: {0}")]
    Listen(#[from] std::io::Error),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// Serves KEDA.
#[derive(Clone, Debug)]
pub struct Scaler {
    demand: Arc<DemandTable>,
    link: RedisLink,
    /// For streams, each of which asks Redis again and again.
    streams: Arc<Semaphore>,
}

impl Scaler {
    /// Begins to collect calls, on the current runtime.
    ///
    /// # Errors
    /// When the target is unusable. A Redis that is away is no error.
    pub fn start(redis: &RedisTarget) -> Result<Self, LinkError> {
        let (link, messages) = RedisLink::start(redis, CHANNEL)?;
        let demand = Arc::new(DemandTable::default());
        let listening = Arc::clone(&demand);
        tokio::spawn(async move { listening.listen(messages).await });
        Ok(Self { demand, link, streams: Arc::new(Semaphore::new(STREAMS_MAX)) })
    }

    /// The link that brings the calls.
    #[must_use]
    pub const fn link(&self) -> &RedisLink {
        &self.link
    }

    /// The gRPC service.
    #[must_use]
    pub fn service(self) -> ExternalScalerServer<Self> {
        ExternalScalerServer::new(self)
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn serve(self, address: SocketAddr) -> Result<(), ServeError> {
        let listener = TcpListener::bind(address).await?;
        let mut server = tonic::transport::Server::builder()
            .timeout(ANSWER_MAX)
            .max_concurrent_streams(CONNECTION_STREAMS_MAX)
            .http2_keepalive_interval(Some(PING_EVERY))
            .http2_keepalive_timeout(Some(PING_MAX));
        let connections = incoming::connections(listener);
        Ok(server.add_service(self.service()).serve_with_incoming(connections).await?)
    }

    /// True if there are calls or messages. `look` has the last look at the messages.
    async fn is_active(&self, asked: &Asked, look: &mut Look) -> Result<bool, Status> {
        let now = Instant::now();
        if self.demand.is_active(&asked.identity, now) {
            return Ok(true);
        }
        let waits = match look.valid(now) {
            Some(waits) => waits,
            None => {
                let waits = self.waiting(asked).await? != Waiting::default();
                look.record(waits, Instant::now());
                waits
            }
        };
        if waits { Ok(true) } else { self.knows_all_calls().map(|()| false) }
    }

    async fn waiting(&self, asked: &Asked) -> Result<Waiting, Status> {
        let waiting = match self.link.session_now() {
            Ok(session) => asked.waiting(&session).await,
            Err(error) => Err(error),
        };
        waiting.map_err(|error| unknown(&error.to_string()))
    }

    /// An error if there may be calls of which no message has come yet.
    fn knows_all_calls(&self) -> Result<(), Status> {
        let session = self.link.session_now().map_err(|error| unknown(&error.to_string()))?;
        if session.since.elapsed() < BELIEVED {
            return Err(unknown("the operator has just connected to Redis"));
        }
        Ok(())
    }
}

fn unknown(why: &str) -> Status {
    Status::unavailable(format!("calls are not known: {why}"))
}

#[tonic::async_trait]
impl ExternalScaler for Scaler {
    type StreamIsActiveStream =
        Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send + 'static>>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let asked = Asked::read(request.get_ref())?;
        let result = self.is_active(&asked, &mut Look::default()).await?;
        Ok(Response::new(IsActiveResponse { result }))
    }

    /// Tells whether the function is active now, and each change, as far as it is known.
    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let asked = Arc::new(Asked::read(request.get_ref())?);
        let place = Arc::clone(&self.streams).try_acquire_owned();
        let place = place.map_err(|_full| {
            Status::resource_exhausted(format!("{STREAMS_MAX} streams are open: try again"))
        })?;
        let place = Arc::new(place);
        let (scaler, changes) = (self.clone(), self.demand.changes());
        let stream = futures_util::stream::unfold(
            (scaler, changes, Look::default(), None),
            move |(scaler, mut changes, mut look, told)| {
                let (asked, place) = (Arc::clone(&asked), Arc::clone(&place));
                async move {
                    let _place = place;
                    loop {
                        if let Ok(result) = scaler.is_active(&asked, &mut look).await
                            && told != Some(result)
                        {
                            let next = (scaler, changes, look, Some(result));
                            return Some((Ok(IsActiveResponse { result }), next));
                        }
                        let changed = tokio::time::timeout(CHECK_EVERY, changes.changed()).await;
                        if let Ok(Err(_ended)) = changed {
                            return None;
                        }
                    }
                }
            },
        );
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let object = request.get_ref();
        let calls = object.scaler_metadata.get(CALLS).and_then(|it| it.parse::<u32>().ok());
        let calls = calls.filter(|calls| *calls > 0).ok_or_else(|| {
            Status::invalid_argument(format!(
                "the trigger of ScaledObject {}/{} has no number as `{CALLS}` in its metadata",
                object.namespace, object.name
            ))
        })?;
        let spec = MetricSpec {
            metric_name: METRIC.to_owned(),
            target_size: calls.into(),
            target_size_float: calls.into(),
        };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let object = request.get_ref().scaled_object_ref.as_ref();
        let object = object.ok_or_else(|| Status::invalid_argument("no ScaledObject"))?;
        let asked = Asked::read(object)?;
        self.knows_all_calls()?;
        let messages = self.waiting(&asked).await?;
        // An instance that handles a message has a running call.
        let calls = self.demand.calls(&asked.identity, Instant::now()).max(messages.pending);
        let calls = calls.saturating_add(messages.undelivered);
        // More calls than a cluster can have are as good as any other large number.
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value: calls.into(),
            metric_value_float: calls.into(),
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}
