//! HTTP clients: a connection for each request, as in the papers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// What OpenWhisk's response to a failed activation contains; its status may be 200.
const WHISK_ERROR: &[u8] = b"\"error\":";

/// Ends the head of a response.
const END: &[u8] = b"\r\n\r\n";

/// A request and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    /// With its query.
    pub path: String,
    /// JSON of OpenWhisk's protocol, which is posted.
    body: Option<Arc<str>>,
}

impl Target {
    #[must_use]
    pub fn new(address: SocketAddr, query: &str) -> Self {
        Self { address, path: format!("/?{query}"), body: None }
    }

    /// A request of OpenWhisk's protocol.
    #[must_use]
    pub const fn whisk(address: SocketAddr, path: String, body: Arc<str>) -> Self {
        Self { address, path, body: Some(body) }
    }

    /// Sends the request, and leaves its answer for later.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn send(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).context("connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let Self { address, path, body } = self;
        let fields = format!("HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        let request = match body {
            None => format!("GET {path} {fields}\r\n"),
            Some(body) => {
                let length = body.len();
                let fields = format!("{fields}content-type: application/json\r\n");
                format!("POST {path} {fields}content-length: {length}\r\n\r\n{body}")
            }
        };
        stream.write_all(request.as_bytes()).context("send a request")?;
        Ok(stream)
    }

    /// Milliseconds from before the connection until the end of an answer with status 200.
    ///
    /// # Errors
    /// For any other answer.
    pub fn ask(&self) -> Result<f64> {
        let started = Instant::now();
        answer(&mut self.send()?).with_context(|| self.path.clone())?;
        Ok(millis(started))
    }

    /// The body of an answer, without chunks.
    ///
    /// # Errors
    /// For an answer with another status than 200.
    pub fn body(&self) -> Result<Vec<u8>> {
        let mut response = response(&mut self.send()?).with_context(|| self.path.clone())?;
        let head = response.windows(END.len()).position(|part| part == END);
        let head = head.with_context(|| format!("{}: an answer without an end", self.path))?;
        Ok(response.split_off(head + END.len()))
    }
}

/// Reads an answer to its end: that of its length, if it has one, as not every server closes the connection.
///
/// # Errors
/// Unless its status is 200, and when it is an error of OpenWhisk's protocol.
pub fn answer(stream: &mut TcpStream) -> Result<()> {
    response(stream).map(|_all| ())
}

fn response(stream: &mut TcpStream) -> Result<Vec<u8>> {
    /// Bytes of one read.
    const PIECE: usize = 64 << 10;
    let (mut response, mut piece) = (Vec::new(), vec![0; PIECE]);
    while !is_complete(&response) {
        let read = stream.read(&mut piece).context("an answer")?;
        if read == 0 {
            break;
        }
        response.extend_from_slice(&piece[..read]);
    }
    let is_error = response.windows(WHISK_ERROR.len()).any(|part| part == WHISK_ERROR);
    let is_good = response.starts_with(b"HTTP/1.1 200 ") && !is_error;
    let shown = response.get(..300.min(response.len())).unwrap_or_default();
    ensure!(is_good, "the answer is {}", String::from_utf8_lossy(shown));
    Ok(response)
}

/// True when a response of known length is there.
fn is_complete(response: &[u8]) -> bool {
    let Some(at) = response.windows(END.len()).position(|part| part == END) else { return false };
    let (head, body) = (String::from_utf8_lossy(&response[..at]), response.len() - at - END.len());
    let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        let value = name.eq_ignore_ascii_case("content-length").then_some(value)?;
        value.trim().parse::<usize>().ok()
    });
    length.is_some_and(|length| body >= length)
}

#[must_use]
pub fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// One request after the other: at least one, and until the time is over.
///
/// # Errors
/// When a request fails.
pub fn serial(target: &Target, time: Duration) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut samples = vec![target.ask()?];
    while started.elapsed() < time {
        samples.push(target.ask()?);
    }
    Ok(samples)
}

/// One client for each list of targets, which it asks in turn: [`serial`], all at a time. The samples of each.
///
/// # Errors
/// When a request fails.
pub fn closed(clients: &[Vec<Target>], time: Duration) -> Result<Vec<Vec<(usize, f64)>>> {
    let barrier = Barrier::new(clients.len());
    let run = |targets: &[Target]| -> Result<Vec<(usize, f64)>> {
        barrier.wait();
        let started = Instant::now();
        let mut samples = Vec::new();
        for index in (0..targets.len()).cycle() {
            if !samples.is_empty() && started.elapsed() >= time {
                break;
            }
            samples.push((index, targets[index].ask()?));
        }
        Ok(samples)
    };
    at_once(clients, |targets| run(targets))
}

/// As `hey -c CLIENTS -q RATE`: each client waits for an answer, and sends at most `rate` requests in a second.
///
/// # Errors
/// When a request fails.
pub fn paced(target: &Target, clients: usize, rate: u32, time: Duration) -> Result<Vec<f64>> {
    let run = |_: &usize| -> Result<Vec<f64>> {
        let (started, interval) = (Instant::now(), Duration::from_secs(1) / rate);
        let mut samples = Vec::new();
        for tick in 0_u32.. {
            let due = interval * tick;
            if due >= time && !samples.is_empty() {
                break;
            }
            thread::sleep(due.saturating_sub(started.elapsed()));
            samples.push(target.ask()?);
        }
        Ok(samples)
    };
    let numbers: Vec<usize> = (0..clients).collect();
    Ok(at_once(&numbers, run)?.concat())
}

/// Runs a thread for each item; all results, or the first error.
///
/// # Errors
/// When a thread fails.
pub fn at_once<T: Sync, R: Send>(
    items: &[T],
    run: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || run(item))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_panic| Err(anyhow::anyhow!("a client panicked")))
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Answers every request with this.
    fn server(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _read = stream.read(&mut [0; 1024]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    #[test]
    fn requests_are_timed_and_failures_are_errors() {
        let good = Target::new(server("HTTP/1.1 200 OK\r\n\r\nhello"), "hello");
        assert!(good.ask().unwrap() > 0.0);
        assert_eq!(good.body().unwrap(), b"hello");
        assert_eq!(serial(&good, Duration::ZERO).unwrap().len(), 1);
        let bad = Target::new(server("HTTP/1.1 500 no\r\n\r\nwhy"), "hello");
        let error = format!("{:#}", bad.ask().unwrap_err());
        assert!(error.contains("500") && error.contains("why"), "{error}");
        // Each client asks its first target, however late it is.
        let both = [vec![good.clone()], vec![bad, good]];
        assert!(closed(&both, Duration::from_millis(50)).is_err());
        let samples = closed(&both[..1], Duration::ZERO).unwrap();
        assert_eq!((samples.len(), samples[0].len(), samples[0][0].0), (1, 1, 0));
    }

    #[test]
    fn a_response_ends_with_its_length_or_its_connection() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert!(!is_complete(head.as_bytes()));
        assert!(!is_complete(format!("{head}a").as_bytes()));
        assert!(is_complete(format!("{head}ab").as_bytes()));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\n\r\nab"));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"));
    }

    #[test]
    fn an_error_of_openwhisk_is_none_of_the_answers() {
        let post = |answer| Target::whisk(server(answer), "/run".to_owned(), "{}".into());
        assert!(post("HTTP/1.1 200 OK\r\n\r\n{\"result\":{}}").ask().is_ok());
        assert!(post("HTTP/1.1 200 OK\r\n\r\n{\"error\":\"why\"}").ask().is_err());
    }

    #[test]
    fn a_pace_bounds_the_requests_of_each_client() {
        let target = Target::new(server("HTTP/1.1 200 OK\r\n\r\n"), "");
        let samples = paced(&target, 2, 20, Duration::from_millis(200)).unwrap();
        assert!((2..=8).contains(&samples.len()), "{}", samples.len());
    }
}
