//! Ten times as many HTTP clients as the functions have places: every request is answered, with the response or with 429.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Group;
use super::gateway::Gateway;
use crate::fixture::{Fixture, stage};
use crate::plan::MIB;
use crate::report::{Comparison, Direction};
use crate::session::Session;
use crate::stats::Rounds;

/// See the file's head.
pub const GROUP: Group = Group {
    name: "http-overload",
    about: "ten times as many HTTP clients as there are places",
    cases: |_| vec![UNANSWERED.to_owned(), MEMORY.to_owned()],
    run,
};

const UNANSWERED: &str = "http-overload-unanswered";
const MEMORY: &str = "http-overload-gateway-memory";

/// Name of the function and its guest, which returns the payload unless that says otherwise.
const FUNCTION: (&str, &str) = ("server", "server");
/// Requests of the function at a time, and those that wait for it.
const PLACES: [u32; 2] = [4, 28];
/// Clients, each with one request at a time.
const CLIENTS: u32 = 10 * (PLACES[0] + PLACES[1]);
/// Every client with a multiple of this number sends a large body; the others have the function sleep.
const LARGE_EVERY: u32 = 8;
const LARGE: usize = 256 << 10;
const SLEEP: &str = "!sleep 5";
/// A request without an answer within this time is lost.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    served: u64,
    refused: u64,
    unanswered: u64,
}

fn run(session: &mut Session, _wanted: &[String]) -> Result<()> {
    let scene = stage(&session.programs, "bench-overload")?;
    let [workers, queue] = PLACES.map(|places| places.to_string());
    let annotations =
        [("cwasi.concurrency", &*workers), ("cwasi.queue", &*queue), ("cwasi.http", "gateway")];
    Fixture::on(&scene).callee(FUNCTION, &annotations);
    let gateway = Gateway::start(&session.programs, &scene)?;
    let address = gateway.address.parse().context("the gateway's address")?;
    let duration = session.effort.load();
    let counts = Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(clients(address, Instant::now() + duration))?;
    let Counts { served, refused, unanswered } = counts;
    anyhow::ensure!(served > 0, "no request was served: {counts:?}");
    let conditions = format!(
        "{CLIENTS} clients that send the next request at once, for {} s; {} workers and a queue of {}, each request 5 ms, \
         of every {LARGE_EVERY}th client {LARGE} B. {served} requests served, {refused} answered with 429, {unanswered} with \
         anything else or not within {ANSWER_MAX:?}",
        duration.as_secs_f64(),
        PLACES[0],
        PLACES[1],
    );
    #[expect(clippy::cast_precision_loss, reason = "counts and sizes far below 2^52")]
    let numbers = [
        (UNANSWERED, "requests", unanswered as f64),
        (MEMORY, "MiB", gateway.peak_memory()? as f64 / MIB as f64),
    ];
    for (case, unit, number) in numbers {
        session.report.add(Comparison {
            case,
            unit,
            ours: &Rounds(vec![vec![number]]),
            baseline: None,
            direction: Direction::BaselineByOurs,
            conditions: conditions.clone(),
        });
    }
    Ok(())
}

/// All clients, to their end.
async fn clients(to: SocketAddr, until: Instant) -> Result<Counts> {
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let body = if number.is_multiple_of(LARGE_EVERY) {
            Bytes::from(vec![7; LARGE])
        } else {
            Bytes::from_static(SLEEP.as_bytes())
        };
        clients.spawn(client(to, body, until));
    }
    let mut all = Counts::default();
    while let Some(counts) = clients.join_next().await {
        let Counts { served, refused, unanswered } = counts??;
        all.served += served;
        all.refused += refused;
        all.unanswered += unanswered;
    }
    Ok(all)
}

/// One client, which connects again when its connection has ended. It sends one request at least, however long it takes
/// to connect.
async fn client(to: SocketAddr, body: Bytes, until: Instant) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut connection = connect(to).await?;
    loop {
        match timeout(ANSWER_MAX, post(&mut connection, &body)).await {
            Ok(Ok(StatusCode::OK)) => counts.served += 1,
            Ok(Ok(StatusCode::TOO_MANY_REQUESTS)) => counts.refused += 1,
            _ => counts.unanswered += 1,
        }
        if Instant::now() >= until {
            return Ok(counts);
        }
        if connection.ready().await.is_err() {
            connection = connect(to).await?;
        }
    }
}

async fn connect(to: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(to).await.context("connect to the gateway")?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Status of a response that arrived to its end.
async fn post(connection: &mut SendRequest<Full<Bytes>>, body: &Bytes) -> Result<StatusCode> {
    let request = Request::post(format!("/function/{}", FUNCTION.0)).header(HOST, "x");
    let response = connection.send_request(request.body(Full::new(body.clone()))?).await?;
    let status = response.status();
    let answer = response.into_body().collect().await?.to_bytes();
    let whole = status != StatusCode::OK || answer == "slept" || answer == *body;
    anyhow::ensure!(whole, "another response");
    Ok(status)
}
