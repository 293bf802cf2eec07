//! Outgoing requests of `wasi:http`, to the destinations of `cwasi.network`. Runs in a worker.
//!
//! A request has a connection of its own: HTTP/1.1, with TLS for `https`. Its name is looked up by our resolver, and
//! it connects to the address that the rules have seen. Everything runs on the worker's own runtime, so a look-up, which
//! waits for name servers, holds up the component's other requests.
//!
//! - [`connect`]: address, TCP and TLS; [`exchange`]: request and response; [`roots`]: certificates of authorities.

mod connect;
mod exchange;
mod failures;
mod roots;

use std::sync::Arc;
use std::time::Duration;

use cwasi_vm::engine::VmError;
use cwasi_vm::sockets::WriteLine;
use cwasi_wasi::SocketNetwork;
use cwasi_wire::egress::Egress;
use http::{Request, Response};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use self::roots::Roots;
use super::rules::Rules;

/// Most requests of an instance at a time.
const REQUESTS_MAX: usize = 256;
/// Longest wait for a connection, with look-up and TLS, unless the request says it.
const CONNECT_DEFAULT: Duration = Duration::from_secs(30);
/// Longest wait for the head of a response, and for the next bytes of its body, unless the request says it. The
/// invocation's deadline usually comes first.
const RESPONSE_DEFAULT: Duration = Duration::from_secs(600);
/// Longest wait that a request may ask for: the runtime's clock ends somewhere.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What the requests of all instances of a function share.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// Allowed destinations; none without `cwasi.network`.
    network: SocketNetwork,
    roots: Arc<Roots>,
}

impl Outgoing {
    /// Reads the node's certificates, so it is made outside of the container.
    ///
    /// # Errors
    /// When there is no memory for the list of refusals.
    pub(super) fn new(
        network: Option<&SocketNetwork>,
        log: Option<WriteLine>,
    ) -> Result<Self, VmError> {
        let (network, roots) = match network {
            Some(network) => (network.clone(), Roots::of_node()),
            None => (SocketNetwork::new(Egress::default(), log)?, Roots::default()),
        };
        Ok(Self { network, roots: Arc::new(roots) })
    }

    /// Requests of a new instance, by the rules of its sockets if it has some.
    pub(super) fn requests(&self, rules: Option<&Rules>) -> Requests {
        Requests(Some(Sender {
            rules: rules.cloned().unwrap_or_else(|| Rules::new(self.network.sockets())),
            roots: Arc::clone(&self.roots),
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }))
    }
}

/// The requests of one instance; the default sends none.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Option<Sender>);

#[derive(Clone, Debug)]
struct Sender {
    rules: Rules,
    roots: Arc<Roots>,
    slots: Arc<Semaphore>,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Until it is connected.
    connect: Instant,
    first_byte: Duration,
    between_bytes: Duration,
}

impl Limits {
    fn of(options: Option<RequestOptions>) -> Self {
        let options = options.unwrap_or_default();
        let of = |asked: Option<Duration>, otherwise| asked.unwrap_or(otherwise).min(WAIT_MAX);
        Self {
            connect: Instant::now() + of(options.connect_timeout, CONNECT_DEFAULT),
            first_byte: of(options.first_byte_timeout, RESPONSE_DEFAULT),
            between_bytes: of(options.between_bytes_timeout, RESPONSE_DEFAULT),
        }
    }
}

/// What drives a connection to its end.
type Ended = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(Response<WasiBody>, Ended), Error>;

impl WasiHttpHooks for Requests {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Ended,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let sender = self.0.clone();
        Box::new(async move {
            let sender = sender.ok_or(Error::HttpRequestDenied)?;
            let limits = Limits::of(options);
            let slot = sender.slots.try_acquire_owned();
            let slot = slot.map_err(|_none_free| Error::ConnectionLimitReached)?;
            let (rules, roots) = (&sender.rules, &sender.roots);
            let connection = connect::connect(rules, roots, request.uri(), limits.connect).await?;
            exchange::exchange(connection, request, limits, slot).await
        })
    }
}
