//! Figure 7a and 7b, Table 1: one function calls another.

use anyhow::{Context as _, Result};
use cwasi_bench::fixture::{Fixture, TOUCH_ALL, guest, stage, unlimited_redis};
use cwasi_bench::peers::{Baseline, Peer};
use cwasi_bench::plan::{Effort, Turns};
use cwasi_bench::turns::{Contestant, Measured, take};
use cwasi_bench_protocol::Verb;

use super::{
    EMBEDDED, ENGINES, INSIDE, LOCAL, MB, NATIVE, OF_WATCHDOG, REDIS, REMOTE, WATCHDOG, WORKERS,
    calls, engines, from_stdin, nodes, prototype,
};
use crate::exhibit::{Exhibit, Form};
use crate::run::{Group, Run};
use crate::series::Series;
use crate::sides::payload_server::PayloadServer;
use crate::sides::wasmedge_http::{self, ABOUT as HTTP_IN_WASMEDGE};

pub const GROUP: Group =
    Group { name: "CWASI: a sequence", entries: &["cwasi-figure-7a", "cwasi-figure-7b"], run };

const fn sizes(effort: Effort) -> &'static [usize] {
    match effort {
        Effort::Full => &[2, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
        Effort::Quick => &[2, 10, 50, 100],
        Effort::Smoke => &[2],
    }
}

/// What all sides of one size have measured.
type Sized = Vec<(usize, Vec<Measured>)>;

fn run(run: &Run) -> Result<Vec<Exhibit>> {
    let mut measured = on_one_node(run)?;
    let apart = [between_nodes(run)?, prototype::measured(run, sizes(run.effort))];
    for (size, more) in apart.into_iter().flatten() {
        let found = measured.iter_mut().find(|(one, _)| *one == size);
        found.context("both have the same sizes")?.1.extend(more);
    }
    let (mut latency, mut throughput) = (Vec::new(), Vec::new());
    for (size, sides) in &measured {
        let case = format!("{size} MB");
        for Measured { name, delivery, call } in sides {
            let millis = |samples: Vec<f64>| samples.iter().map(|micros| micros / 1e3).collect();
            latency.push(Series::new(
                &format!("{name}: delivery"),
                &case,
                "ms",
                millis(delivery.all()),
            ));
            latency.push(Series::new(&format!("{name}: call"), &case, "ms", millis(call.all())));
            let rates = call.all().iter().map(|micros| 1e6 / micros).collect();
            throughput.push(Series::new(name, &case, "req/s", rates));
        }
    }
    let conditions = format!(
        "One function calls another on the same node; networked: on another one, two containerds in networks of their own \
         on this machine, over a Redis between them or over TLS from shim to shim. {ENGINES} {LOCAL} and {EMBEDDED}: the \
         payload is made in a region, sealed inside the clock, and read by the callee, in an instance as new for each request \
         (local). {NATIVE}: a native client and a hyper server in a container of runc in the machine’s network, one connection \
         kept alive. {WATCHDOG}: the same, and the server starts a process for each request, which reads the payload from \
         stdin. {OF_WATCHDOG}, if this machine has it: OpenFaaS’ server in front of the same hyper server, in a network of \
         their own. {HTTP_IN_WASMEDGE} {REDIS}: one message to a subscriber and one back. Sides of one node take turns, and so do \
         those between nodes; the first turn is dropped. {}",
        prototype::ABOUT
    );
    Ok(vec![
        Exhibit::new("cwasi-figure-7a", Form::Lines, &conditions, latency).published(&[
            ("CWASI", "2 MB", 5.1),
            ("WasmEdge", "2 MB", 48.0),
            ("OpenFaaS", "2 MB", 24.8),
            ("CWASI", "100 MB", 143.6),
            ("WasmEdge", "100 MB", 4432.4),
            ("OpenFaaS", "100 MB", 368.1),
        ]),
        Exhibit::new(
            "cwasi-figure-7b",
            Form::Lines,
            format!(
                "Calls in a second if one follows the other: 1 by the call’s time. {conditions}"
            ),
            throughput,
        )
        .published(&[
            ("CWASI", "2 MB", 266.4535),
            ("WasmEdge", "2 MB", 15.8323),
            ("OpenFaaS", "2 MB", 41.724),
            ("CWASI", "100 MB", 6.9569),
            ("WasmEdge", "100 MB", 0.1732),
            ("OpenFaaS", "100 MB", 2.7556),
        ]),
    ])
}

fn turns(run: &Run, size: usize) -> Turns {
    run.effort.turns(size * MB)
}

fn on_one_node(run: &Run) -> Result<Sized> {
    let scene = stage(&run.programs, "papers-sequence")?;
    let fixture = Fixture::on(&scene);
    let program = std::env::current_exe()?;
    let engines = engines::built(run);
    for sides in &engines {
        sides.callee(&fixture, TOUCH_ALL, &[("cwasi.concurrency", WORKERS)]);
    }
    let own = run.own_image(&scene)?;
    let server = PayloadServer::start(&scene, "payload-server", &own)?;
    let watchdog = PayloadServer::start_watchdog(&scene, "watchdog", &own)?;
    let of_watchdog = PayloadServer::start_of_watchdog(&scene, "of-watchdog")?;
    let (_, module) = TOUCH_ALL;
    let image = scene.import_module(module, &guest(&run.programs, module)?);
    let wish = format!("{INSIDE}={image}");
    let mut sized = Sized::new();
    for &size in sizes(run.effort) {
        let turns = turns(run, size);
        let job = |target: &str| calls(Verb::Call, target, size * MB, turns.block);
        let of = |name, side, job| Contestant { name, side, job };
        let mut contestants = Vec::new();
        for sides in &engines {
            let inside = [("cwasi.embed", wish.as_str()), ("cwasi.mode", "embedded")];
            let inside = sides.driver(&fixture, &inside)?;
            let beside = sides.driver(&fixture, &[("cwasi.mode", "local")])?;
            contestants.push(of(sides.embedded, inside.side, job(INSIDE)));
            let callee = sides.function(TOUCH_ALL.0);
            contestants.push(of(sides.local, beside.side, job(&callee)));
        }
        let watched = from_stdin(job(""));
        contestants.push(of(NATIVE, server.peer(1).start(&program)?, job("")));
        contestants.push(of(WATCHDOG, watchdog.peer(1).start(&program)?, watched));
        for side in wasmedge_http::sides(&run.programs) {
            contestants.push(of(
                side.name,
                side.peer(run.wasmedge_guests()?)?.start(&program)?,
                job(""),
            ));
        }
        if let Some(of_watchdog) = &of_watchdog {
            contestants.push(of(OF_WATCHDOG, of_watchdog.peer(1).start(&program)?, job("")));
        }
        sized.push((size, take(contestants, turns)?));
    }
    Ok(sized)
}

fn between_nodes(run: &Run) -> Result<Sized> {
    let nodes = nodes::start(run, "papers-sequence-nodes")?;
    let redis = unlimited_redis();
    let program = std::env::current_exe()?;
    let [edge, cloud] = [&nodes.edge, &nodes.cloud].map(Fixture::on);
    let engines = engines::built(run);
    for sides in &engines {
        sides.callee(&cloud, REMOTE, &[("cwasi.concurrency", WORKERS)]);
    }
    let mut sized = Sized::new();
    for &size in sizes(run.effort) {
        let turns = turns(run, size);
        let job = |target: &str| calls(Verb::Call, target, size * MB, turns.block.div_ceil(4));
        let mut contestants = Vec::new();
        for sides in &engines {
            let drivers = nodes::drivers(&nodes, &edge, sides)?;
            for (name, side) in sides.networked.into_iter().zip(drivers) {
                let job = job(&sides.function(REMOTE.0));
                contestants.push(Contestant { name, side, job });
            }
        }
        let peer = Peer::new(Baseline::Redis).through(&redis.url());
        contestants.push(Contestant { name: REDIS, side: peer.start(&program)?, job: job("") });
        sized.push((size, take(contestants, turns)?));
    }
    Ok(sized)
}
