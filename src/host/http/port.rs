//! `cwasi.http=PORT`: serves one instance on a port inside its container's network namespace, so that a Service, a probe
//! or a port mapping reaches it. Runs in the shim daemon.
//!
//! The listener is made in the namespace; requests are served by the daemon, outside of it, and reach the instance as any
//! other call does.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use nix::sched::{CloneFlags, setns};
use tokio::sync::oneshot;

use super::HttpLimits;
use super::front::FunctionFront;
use super::openwhisk::{ActionHost, ActionService};
use super::response_body::ResponseBody;
use super::server::{HttpServer, Service};
use crate::caller::HostCaller;
use cwasi_coordinator::registry::Record;

/// Most requests to one instance at a time.
const REQUESTS_MAX: usize = 256;
/// Most connections to one instance at a time.
const CONNECTIONS_MAX: usize = 512;
/// Most bytes of all large bodies on their way to one instance. They are the shim's memory until the function has them.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// A port that is served until this is dropped.
#[derive(Debug)]
pub struct ServedPort {
    _stop: oneshot::Sender<()>,
}

impl ServedPort {
    /// Listens in the network namespace of process `pid` and serves the instance of `record`. Without a process it
    /// listens in this one's, on the loopback device.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the port is taken.
    pub async fn start(
        pid: Option<i32>,
        port: u16,
        record: &Record,
        caller: HostCaller,
    ) -> io::Result<Self> {
        let front = FunctionFront::new(caller, limits(record.timeout_ms, record.http_idle_ms));
        let service = PortService { front, function: record.identity.function.clone() };
        Self::serve(pid, port, limits(record.timeout_ms, record.http_idle_ms), service).await
    }

    /// The same for an instance that is an action of OpenWhisk, which `host` starts.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_action(
        pid: Option<i32>,
        port: u16,
        record: &Record,
        caller: HostCaller,
        host: impl ActionHost,
    ) -> io::Result<Self> {
        let function = &record.identity.function;
        // Activations have deadlines of their own.
        let limits = limits(None, record.http_idle_ms);
        let service =
            ActionService::new(caller, function, record.max_payload, limits.clone(), host);
        Self::serve(pid, port, limits, service).await
    }

    async fn serve(
        pid: Option<i32>,
        port: u16,
        limits: HttpLimits,
        service: impl Service,
    ) -> io::Result<Self> {
        let listening = tokio::task::spawn_blocking(move || match pid {
            Some(pid) => listen(Path::new(&format!("/proc/{pid}/ns/net")), port),
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, port)),
        });
        let listener = listening.await.map_err(io::Error::other)??;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // Dropped, not sent.
            let _dropped = stopped.await;
        };
        tokio::spawn(HttpServer { listener, tls: None, limits }.serve(service, stopped));
        Ok(Self { _stop: stop })
    }
}

/// Bounds of the port of one instance. A request has the function's own time, if it names one.
fn limits(timeout_ms: Option<u64>, idle_ms: u64) -> HttpLimits {
    let default = HttpLimits::default();
    let idle_timeout = match idle_ms {
        0 => default.idle_timeout,
        milliseconds => Duration::from_millis(milliseconds),
    };
    HttpLimits {
        requests: REQUESTS_MAX,
        connections: CONNECTIONS_MAX,
        body_bytes: BODY_BYTES_MAX,
        idle_timeout,
        request_timeout: timeout_ms.map_or(default.request_timeout, Duration::from_millis),
        ..default
    }
}

/// A listener in a network namespace, for IPv6 and IPv4 where the namespace has both.
fn listen(namespace: &Path, port: u16) -> io::Result<TcpListener> {
    let namespace = File::open(namespace)?;
    // A namespace belongs to a thread. This one ends with it.
    let entered = std::thread::Builder::new().name("netns".to_owned()).spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        match TcpListener::bind(any) {
            Err(error) if error.kind() != ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            }
            bound => bound,
        }
    })?;
    let listener =
        entered.join().unwrap_or_else(|_panic| Err(io::Error::other("the thread panicked")))?;
    Ok(listener)
}

/// Every path is the function's.
#[derive(Clone)]
struct PortService {
    front: FunctionFront,
    function: String,
}

impl Service for PortService {
    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        self.front.call(&self.function, &path, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_functions_own_time() {
        let longest = |timeout_ms| limits(timeout_ms, 0).request_timeout;
        assert_eq!(longest(None), Duration::from_secs(60));
        assert_eq!(longest(Some(300_000)), Duration::from_secs(300));
        assert_eq!(longest(Some(1500)), Duration::from_millis(1500));
    }

    #[test]
    fn a_port_has_the_functions_own_idle_time() {
        let idle = |idle_ms| limits(None, idle_ms).idle_timeout;
        assert_eq!(idle(0), Duration::from_secs(75));
        assert_eq!(idle(5000), Duration::from_secs(5));
    }
}
