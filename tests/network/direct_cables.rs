//! Direct connections between nodes with a network each and a cable between them: packets that come twice and out of
//! order, and a node that reboots.

use std::net::Ipv4Addr;
use std::time::Duration;

use cwasi_config::messages::MessagesConfig;
use cwasi_modes::CallError;
use cwasi_networked::RedisTarget;
use cwasi_testbed::netns::Netns;
use cwasi_testbed::redis::{Redis, RedisVersion, Setup};
use cwasi_wire::envelope::Path;

use crate::cable::Cable;
use crate::direct::Host;
use crate::direct_faults::{assert_true, ends_under_load};
use crate::fixture::{Executions, Instance, Node, PATIENCE, counts, target, wait_for};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 9470;

/// A node with a server beside it, and another one at the other end of a cable.
struct Cabled {
    here: Node,
    there: Remote,
    _redis: Redis,
    _network: Netns,
}

/// The other node, which serves an instance of `b`.
struct Remote {
    cable: Cable,
    /// What stays when it has no power.
    host: Host,
    target: RedisTarget,
    executions: Executions,
    running: Option<(Node, Instance, Netns)>,
}

impl Cabled {
    fn start() -> Self {
        let (network, cable) = (Netns::new(&[]), Cable::new());
        cable.plug(0, &network, format!("{HERE}/24"));
        let setup = Setup { bind: HERE.into(), ..RedisVersion::Redis7.into() };
        let redis = network.run(|| Redis::start(setup));
        let [mut host, mut other] = [Host::new("here"), Host::new("there")];
        host.settings.listen = (HERE, PORT).into();
        other.settings.listen = (THERE, PORT).into();
        let target = target(&redis);
        let here = node(&network, &host, &target);
        let executions = Executions::default();
        let mut there = Remote { cable, host: other, target, executions, running: None };
        there.boot();
        Self { here, there, _redis: redis, _network: network }
    }
}

fn node(network: &Netns, host: &Host, target: &RedisTarget) -> Node {
    let (name, settings, target) = (host.name, host.settings.clone(), target.clone());
    network.run(move || Node::with(name, &target, &MessagesConfig::default(), Some(settings)))
}

impl Remote {
    fn boot(&mut self) {
        let network = Netns::new(&[]);
        self.cable.plug(1, &network, format!("{THERE}/24"));
        let node = node(&network, &self.host, &self.target);
        let instance = Instance::start(&self.executions);
        node.serve(&instance);
        self.running = Some((node, instance, network));
    }

    /// Everything of it is gone, its connections, too, and nothing says so.
    fn lose_power(&mut self) {
        self.cable.unplug(1);
        let (node, mut instance, network) = self.running.take().unwrap();
        node.kill();
        instance.kill();
        drop(network);
    }
}

fn is_direct(here: &Node) -> bool {
    here.caller().path_of_a_call() == Path::PATH_DIRECT
}

#[test]
fn packets_that_come_twice_and_out_of_order_change_no_call() {
    const CALLERS: usize = 4;
    const CALLS: usize = 40;
    let nodes = Cabled::start();
    assert!(is_direct(&nodes.here));
    nodes.there.cable.shuffle(true);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let mut worker = nodes.here.caller();
            scope.spawn(move || {
                for number in 0..CALLS {
                    let length = if number % 10 == 0 { 2 << 20 } else { 64 };
                    let bytes = (caller..).map(|it| (it * 31 % 251) as u8 ^ number as u8);
                    let payload: Vec<_> = bytes.take(length).collect();
                    let answer = worker.call(&payload, PATIENCE);
                    assert!(answer.as_ref() == Ok(&payload), "{:?}", answer.map(|it| it.len()));
                }
            });
        }
    });
    assert!(is_direct(&nodes.here), "no call went another way");
    let shuffled = nodes.there.cable.shuffle(false);
    assert!(shuffled > CALLERS * CALLS, "{shuffled} packets");
    let counts = counts(&nodes.there.executions);
    assert_eq!(counts.len(), 2 + CALLERS * CALLS);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn a_node_that_reboots_is_called_again_and_leaves_every_call_an_end() {
    let Cabled { here, mut there, _redis, _network } = Cabled::start();
    assert!(is_direct(&here));
    // First it is back before it was missed: its callers' connections are half open.
    for is_missed in [false, true] {
        let (executions, mut calls) = (there.executions.clone(), here.caller());
        let ends = ends_under_load(&here, || {
            std::thread::sleep(Duration::from_millis(200));
            there.lose_power();
            if is_missed {
                wait_for("calls that reach no instance", || {
                    matches!(calls.call(b"x", PATIENCE), Err(CallError::Unreachable { .. }))
                });
            }
            there.boot();
            wait_for("direct calls", || is_direct(&here));
        });
        assert_true(&executions, &ends);
        let answered = ends.values().filter(|end| end.is_ok()).count();
        println!("missed: {is_missed}; {answered} of {} calls answered", ends.len());
        // Nothing is left of the connections from before.
        for _ in 0..100 {
            assert_eq!(here.caller().call(b"x", PATIENCE), Ok(b"x".to_vec()));
        }
    }
}
