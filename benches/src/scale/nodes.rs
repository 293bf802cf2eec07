//! Nodes in the directory: two real ones, and the records of others in a real Redis.

use std::iter;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cwasi_networked::{RedisLink, RedisSession, RedisTarget, locations};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Location;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::curve::{Cost, Curve};
use super::{Scale, calls_of};
use crate::cases::network::nodes;
use crate::fixture::{Fixture, TOUCH_NONE};
use crate::turns;

const NODES: &[usize] = &[2, 10, 100, 300, 1000];
/// The nodes that exist.
const REAL: usize = 2;
/// Callers of each amount, each of a shim of its own.
const CALLERS: usize = 5;
const LISTS: usize = 20;
/// How long records stay: longer than a run.
const KEPT_MS: u64 = 3_600_000;
/// Longest wait for Redis.
const REDIS_MAX: Duration = Duration::from_secs(10);
/// A function with an instance on every node.
const SPREAD: &str = "spread";
const OVER: [&str; 2] = ["nodes in the directory", "us"];

/// All curves.
pub fn run(scale: &Scale) -> Result<Vec<Curve>> {
    let mut first = Curve::new(
        "nodes-first-call",
        OVER,
        Cost::One,
        "64 B to a function on the other node, the first call of a caller whose shim is new, with the connection \
         between the nodes; each other node is the records of two functions in Redis",
    );
    let mut look_up = Curve::new(
        "nodes-look-up",
        OVER,
        Cost::All,
        "a shim's look-up of a function with an instance on each node; at most 256 of them are read",
    );
    let mut list =
        Curve::new("nodes-list", OVER, Cost::All, "the list of all functions of all nodes");
    let nodes = nodes(&scale.programs, "scale-nodes")?;
    Fixture::on(&nodes.cloud).callee(TOUCH_NONE, &[]);
    let edge = Fixture::on(&nodes.edge);
    let directory = Directory::open(&nodes.redis_url())?;
    let mut callers = 0;
    for amount in scale.amounts(NODES, 1000) {
        directory.record(&nodes.edge.namespace, amount)?;
        let mut calls = Vec::new();
        for _ in 0..scale.effort.pick(CALLERS, 3) {
            callers += 1;
            let workflow = format!("caller-{callers}");
            let mut driver =
                edge.driver(&[("cwasi.mode", "networked"), ("cwasi.workflow", &workflow)])?.side;
            calls.extend(turns::micros(&driver.perform(&calls_of(TOUCH_NONE.0, 1))?.call));
            driver.end()?;
        }
        first.add(amount, &calls);
        let spread = identity(&nodes.edge.namespace, SPREAD);
        look_up.add(amount, &directory.timed(async |it| locations::look_up(it, &spread).await)?);
        list.add(amount, &directory.timed(async |it| locations::all(it, usize::MAX).await)?);
    }
    Ok(vec![first, look_up, list])
}

fn identity(namespace: &str, function: &str) -> Identity {
    Identity {
        namespace: namespace.to_owned(),
        pod_namespace: String::new(),
        function: function.to_owned(),
    }
}

/// A client of the nodes' Redis, as a shim has one.
struct Directory {
    runtime: Runtime,
    session: RedisSession,
    records: redis::Client,
    _link: RedisLink,
}

impl Directory {
    fn open(url: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let target = RedisTarget { url: url.to_owned(), ca: None };
        let (link, session) = runtime.block_on(async {
            let (link, _listener) = RedisLink::start(&target, "cwasi:re:scale")?;
            let session = link.session(Instant::now() + REDIS_MAX).await?;
            anyhow::Ok((link, session))
        })?;
        Ok(Self { runtime, session, records: redis::Client::open(url)?, _link: link })
    }

    /// Writes what shims of so many nodes would announce: one function that all have, and one that only a node has that
    /// does not exist.
    fn record(&self, namespace: &str, nodes: usize) -> Result<()> {
        let mut connection = self.records.get_connection().context("connect to Redis")?;
        let mut pipe = redis::pipe();
        for node in 0..nodes {
            let own = (node >= REAL).then(|| format!("only-{node}"));
            for function in iter::once(SPREAD.to_owned()).chain(own) {
                let identity = identity(namespace, &function);
                let set = format!("cwasi:fn:{}", identity.short());
                let location = Location {
                    identity,
                    node: format!("node-{node}"),
                    instance: format!("{function}-at-{node}"),
                    allow: Vec::new(),
                    max_payload: 1 << 28,
                    max_head: 65_536,
                    http: false,
                    link: None,
                };
                let key = format!("cwasi:at:{}", location.instance);
                pipe.cmd("SET").arg(key).arg(location.encode()).arg("PX").arg(KEPT_MS).ignore();
                pipe.cmd("SADD").arg(set).arg(location.instance).ignore();
            }
        }
        pipe.query::<()>(&mut connection).context("write the records")
    }

    /// µs of each of some look-ups.
    fn timed<E: std::error::Error + Send + Sync + 'static>(
        &self,
        look_up: impl AsyncFn(&RedisSession) -> Result<Vec<Location>, E>,
    ) -> Result<Vec<f64>> {
        self.runtime.block_on(async {
            let mut times = Vec::new();
            for _ in 0..LISTS {
                let started = Instant::now();
                look_up(&self.session).await?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        })
    }
}
