//! A failover: the name in `redis_url` leads to another server, and the one before goes on as its replica.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cwasi_networked::RedisTarget;
use cwasi_testbed::redis::{Redis, RedisVersion};

use crate::fixture::{Executions, Instance, Node, PATIENCE, counts, wait_for};

/// Longer than one call waits for Redis.
const WAIT: Duration = Duration::from_secs(5);

/// An address whose connections lead to the server that is set when they are made, as a virtual address does.
struct Address {
    url: String,
    server: Arc<Mutex<String>>,
}

impl Address {
    fn start(server: &Redis) -> Self {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let server = Arc::new(Mutex::new(server.address()));
        let current = Arc::clone(&server);
        // Ends with the test process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let server = current.lock().unwrap().clone();
                let Ok(server) = TcpStream::connect(server) else { continue };
                forward(client.unwrap(), server);
            }
        });
        Self { url: format!("redis://{address}"), server }
    }

    fn lead_to(&self, server: &Redis) {
        *self.server.lock().unwrap() = server.address();
    }
}

/// Carries bytes in both directions, until either side ends.
pub fn forward(client: TcpStream, server: TcpStream) {
    let pairs = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
    for (from, to) in pairs {
        let (mut from, mut to) = (from.unwrap(), to.unwrap());
        std::thread::spawn(move || {
            // Ends when either side closes.
            let _end = io::copy(&mut from, &mut to);
            let _closed = to.shutdown(Shutdown::Write);
        });
    }
}

#[test]
fn calls_go_on_when_another_server_is_the_master() {
    let servers = [Redis::start(RedisVersion::Redis7), Redis::start(RedisVersion::Redis7)];
    let address = Address::start(&servers[0]);
    let target = RedisTarget { url: address.url.clone(), ca: None };
    let executions = Executions::default();
    let instance = Instance::start(&executions);
    let there = Node::start("there", &target);
    there.serve(&instance);
    let (_here, mut worker) = Node::start("here", &target).caller_kept();
    assert_eq!(worker.call(b"before", PATIENCE), Ok(b"before".to_vec()));
    address.lead_to(&servers[1]);
    let port = servers[1].port().to_string();
    servers[0].cli(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for("a call by the new master", || worker.call(b"after", WAIT).is_ok());
    assert_ne!(servers[1].cli(&["EXISTS", "cwasi:since"]), "0");
    assert!(counts(&executions).values().all(|count| *count == 1));
}
