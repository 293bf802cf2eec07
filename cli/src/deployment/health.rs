//! Waits until a service is ready: its health check, again and again until a bound.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use super::service_containers::network_of;
use crate::containerd::Containerd;
use crate::containerd::exec::Executed;
use crate::failure::{Exit, Failure};
use cwasi_workflow::services::{HealthCheck, Service};

/// Between two checks.
const POLL: Duration = Duration::from_millis(100);
/// Shortest time for an answer to a check.
const LAST_MIN: Duration = Duration::from_secs(1);
/// Longest check.
const CHECK_MAX: Duration = Duration::from_secs(10);
/// Most bytes of an answer that are read: its first line.
const ANSWER_MAX: u64 = 1024;

/// Waits until the service in the container `id` is ready.
///
/// # Errors
/// When it has ended, or is not ready within its time.
pub async fn wait(containerd: &Containerd, id: &str, service: &Service) -> Result<(), Failure> {
    let until = Instant::now() + service.health.timeout;
    loop {
        let Some(task) = containerd.task(id).await?.filter(|task| task.is_alive()) else {
            return Err(ended(containerd, id, service).await);
        };
        let left = until.saturating_duration_since(Instant::now());
        // The last one gets time for an answer, which says more than that there was none.
        let bound = CHECK_MAX.min(left.max(LAST_MIN));
        let checked = check(containerd, id, network_of(&task), service, bound).await;
        let Err(problem) = checked else { return Ok(()) };
        if Instant::now() >= until {
            let Service { name, health, .. } = service;
            let text = format!(
                "service {name} is not ready after {} s: {problem}; see its `health`, or raise `health.timeout`",
                health.timeout.as_secs_f64()
            );
            return Err(Failure::text(Exit::Failed, text));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ended(containerd: &Containerd, id: &str, service: &Service) -> Failure {
    let code = match containerd.task(id).await {
        Ok(Some(task)) => format!(" with code {}", task.exit),
        Ok(None) | Err(_) => String::new(),
    };
    let text = format!("service {} ended{code} before it was ready", service.name);
    Failure::text(Exit::Failed, text)
}

/// One check; what is wrong.
async fn check(
    containerd: &Containerd,
    id: &str,
    network: PathBuf,
    service: &Service,
    bound: Duration,
) -> Result<(), String> {
    let port = service.port;
    let path = match &service.health.check {
        HealthCheck::Command(words) => return by_command(containerd, id, words, bound).await,
        HealthCheck::Http(path) => Some(path.clone()),
        HealthCheck::Port => None,
    };
    let checked = move || by_port(&network, port, path.as_deref(), bound);
    // A thread of its own, since it changes its network.
    let thread = std::thread::spawn(checked);
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    match joined {
        Ok(Ok(checked)) => checked,
        Ok(Err(_)) | Err(_) => Err("the check failed".to_owned()),
    }
}

async fn by_command(
    containerd: &Containerd,
    id: &str,
    words: &[String],
    bound: Duration,
) -> Result<(), String> {
    let command = words.join(" ");
    match containerd.exec(id, words, bound).await {
        Ok(Executed::Ended(0)) => Ok(()),
        Ok(Executed::Ended(code)) => Err(format!("`{command}` ended with code {code}")),
        Ok(Executed::Killed) => {
            Err(format!("`{command}` took longer than {} s", bound.as_secs_f64()))
        }
        Err(error) => Err(format!("`{command}`: {error}")),
    }
}

/// Connects to a port of a network, and with `path` asks for it. The calling thread stays in the network.
fn by_port(network: &Path, port: u16, path: Option<&str>, bound: Duration) -> Result<(), String> {
    let entered = File::open(network)
        .and_then(|network| setns(network, CloneFlags::CLONE_NEWNET).map_err(io::Error::from));
    entered.map_err(|error| format!("its network cannot be entered: {error}"))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, bound);
    let stream = stream.map_err(|error| format!("port {port}: {error}"))?;
    let Some(path) = path else { return Ok(()) };
    let status = status(stream, path, bound)
        .map_err(|error| format!("GET {path} on port {port}: {error}"))?;
    if (200..400).contains(&status) {
        return Ok(());
    }
    Err(format!("GET {path} on port {port} answers with status {status}"))
}

/// The status of the answer to a request.
fn status(mut stream: TcpStream, path: &str, bound: Duration) -> io::Result<u16> {
    stream.set_read_timeout(Some(bound))?;
    stream.set_write_timeout(Some(bound))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(ANSWER_MAX)).read_until(b'\n', &mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    status
        .and_then(|status| status.trim().parse().ok())
        .ok_or_else(|| io::Error::other("the answer is not of HTTP"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one connection, and says where.
    fn server(answer: &'static str) -> (u16, thread::JoinHandle<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let len = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..len]).into_owned()
        });
        (port, served)
    }

    #[test]
    fn an_answer_from_200_to_399_is_healthy() {
        let bound = Duration::from_secs(10);
        let ask = |answer| {
            let (port, served) = server(answer);
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let status = status(stream, "/healthz", bound);
            let request = served.join().unwrap();
            assert!(
                request.starts_with("GET /healthz HTTP/1.1\r\nHost: localhost\r\n"),
                "{request}"
            );
            status.ok()
        };
        assert_eq!(ask("HTTP/1.1 204 No Content\r\n\r\n"), Some(204));
        assert_eq!(ask("HTTP/1.0 503 Service Unavailable\r\n\r\nno"), Some(503));
        assert_eq!(ask("+PONG\r\n"), None);
        assert_eq!(ask(""), None);
    }
}
