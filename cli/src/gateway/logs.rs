//! A function's log for clients: lines of the files that `cwasi deploy` keeps, as OpenFaaS names their parts. Runs in
//! the gateway, on threads for blocking work.
//!
//! Invariants: only clients that have proved who they are read logs. Streams, their time and the length of a line are
//! bounded, and no log is held in memory.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cwasi_config::NodeConfig;
use cwasi_coordinator::registry::Record;
use cwasi_coordinator::selection::scope_of;
use cwasi_host::http::response_body::ResponseBody;
use cwasi_host::http::status::sentence;
use cwasi_wire::log_line::split_time;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};

use crate::deployment::log_file::LogFile;
use crate::deployment::platform::log_file;

/// Most clients that read logs at a time; more get 429.
const STREAMS_MAX: usize = 16;
/// Longest time for which new lines are sent, as OpenFaaS has it.
const FOLLOW_MAX: Duration = Duration::from_secs(30);
/// Between two polls of the files.
const LOOK: Duration = Duration::from_millis(100);
/// Longest line in bytes; a longer one is divided.
const LINE_MAX: usize = 64 << 10;
/// Lines that wait for the client.
const WAITING_MAX: usize = 16;

/// Which lines a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogQuery {
    pub follow: bool,
    /// Not those before. A line without a time counts as the line before it.
    pub since: Option<SystemTime>,
    /// Only this many from the end of each file.
    pub tail: Option<u64>,
}

/// The logs of this node's functions; clones share the bounds.
#[derive(Clone)]
pub(super) struct Logs {
    config: NodeConfig,
    is_permitted: bool,
    streams: Arc<Semaphore>,
}

/// One line, with OpenFaaS' names.
#[derive(Serialize)]
struct Message<'a> {
    name: &'a str,
    namespace: &'a str,
    instance: &'a str,
    timestamp: String,
    text: &'a str,
}

impl Logs {
    /// `is_permitted`: clients have a token or a certificate.
    pub(super) fn new(config: &NodeConfig, is_permitted: bool) -> Self {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        Self { config: config.clone(), is_permitted, streams }
    }

    /// Streams the logs of these instances of a function.
    pub(super) fn stream(&self, records: Vec<Record>, query: LogQuery) -> Response<ResponseBody> {
        if !self.is_permitted {
            let text = "this gateway shows no logs, because it does not know its clients: its operator has to set \
                        --token-file or --client-ca";
            return sentence(StatusCode::NOT_IMPLEMENTED, text);
        }
        if records.is_empty() {
            let text = "no function of this name takes HTTP calls here";
            return sentence(StatusCode::NOT_FOUND, text);
        }
        let opened = records.into_iter().filter_map(|record| Source::open(&self.config, record));
        let mut sources: Vec<_> = opened.collect();
        if sources.is_empty() {
            let text = "this function has no log here: cwasi deploy keeps one, other clients of containerd say where the \
                        output of their containers goes";
            return sentence(StatusCode::NOT_IMPLEMENTED, text);
        }
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let text = format!("{STREAMS_MAX} clients read logs, the most at a time");
            return sentence(StatusCode::TOO_MANY_REQUESTS, &text);
        };
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            if let Err(error) = send(&mut sources, query, &sender) {
                tracing::warn!(%error, "a log cannot be read");
            }
        });
        let mut response = Response::new(ResponseBody::Chunks(receiver));
        let kind = HeaderValue::from_static("application/x-ndjson");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// Sends the lines until their end, or until the client is gone.
fn send(sources: &mut [Source], query: LogQuery, to: &mpsc::Sender<Bytes>) -> io::Result<()> {
    let until = Instant::now() + FOLLOW_MAX;
    for source in &mut *sources {
        source.skip_to_tail(query)?;
    }
    loop {
        // Before the last poll: what was written before the end is sent.
        let ends = !query.follow || Instant::now() >= until;
        for source in &mut *sources {
            while let Some(line) = source.next(query.since, ends)? {
                if to.blocking_send(source.message(&line)?).is_err() {
                    return Ok(());
                }
            }
        }
        if ends || to.is_closed() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// The log of one instance.
struct Source {
    record: Record,
    file: BufReader<LogFile>,
    /// For lines before the first one with a time.
    opened: SystemTime,
    /// Of the last line that has one.
    time: Option<SystemTime>,
    rest: Vec<u8>,
}

impl Source {
    fn open(config: &NodeConfig, record: Record) -> Option<Self> {
        let path = log_file(config, &record.identity.namespace, &record.container);
        let file = BufReader::new(LogFile::open(&path).ok()?);
        Some(Self { record, file, opened: SystemTime::now(), time: None, rest: Vec::new() })
    }

    /// The next line that is shown; an unfinished one at the end only.
    fn next(&mut self, since: Option<SystemTime>, end: bool) -> io::Result<Option<Vec<u8>>> {
        loop {
            let room = LINE_MAX.saturating_sub(self.rest.len());
            let read = self.file.by_ref().take(room as u64).read_until(b'\n', &mut self.rest)?;
            let is_whole = self.rest.ends_with(b"\n") || self.rest.len() >= LINE_MAX;
            if !is_whole && (read > 0 || !end || self.rest.is_empty()) {
                if read == 0 {
                    return Ok(None);
                }
                continue;
            }
            let line = std::mem::take(&mut self.rest);
            self.time = split_time(&line).map(|(time, _)| time).or(self.time);
            if since.is_none_or(|since| self.time.is_none_or(|time| time >= since)) {
                return Ok(Some(line));
            }
        }
    }

    /// Passes over all lines but the last ones that are asked for.
    fn skip_to_tail(&mut self, query: LogQuery) -> io::Result<()> {
        let Some(tail) = query.tail else { return Ok(()) };
        let mut lines: u64 = 0;
        while self.next(query.since, true)?.is_some() {
            lines += 1;
        }
        self.file = BufReader::new(self.file.get_ref().reopen()?);
        self.time = None;
        for _ in tail..lines {
            self.next(query.since, true)?;
        }
        Ok(())
    }

    fn message(&self, line: &[u8]) -> io::Result<Bytes> {
        let text = split_time(line).map_or(line, |(_, text)| text);
        let text = String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(text));
        let time = self.time.unwrap_or(self.opened);
        let mut message = serde_json::to_vec(&Message {
            name: &self.record.identity.function,
            namespace: scope_of(&self.record.identity),
            instance: &self.record.container,
            timestamp: humantime::format_rfc3339_micros(time).to_string(),
            text: &text,
        })?;
        message.push(b'\n');
        Ok(message.into())
    }
}
