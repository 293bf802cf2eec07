//! Which of the kept connections a call gets.

use std::net::Ipv4Addr;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket};

use super::super::connection::write_message;
use super::super::key::NodeKey;
use super::*;

/// A shim that takes connections and no calls.
async fn shim(tls: &Tls) -> Link {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (own, proof) = (tls.clone(), tls.proof().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = own.clone();
            tokio::spawn(async move {
                let (mut stream, _proven) = tls.accept(stream).await.unwrap();
                write_message(&mut stream, Kind::Ready, &[]).await.unwrap();
                // Until the other side ends it.
                let _ended = stream.read(&mut [0]).await;
            });
        }
    });
    Link { address, shim: "aa".to_owned(), proof }
}

fn pair(caller: &str) -> Pair {
    Pair { caller: caller.to_owned(), callee: "callee".to_owned() }
}

/// Its connection's port on this side.
fn port(lease: &Lease) -> u16 {
    lease.stream.get_ref().0.local_addr().unwrap().port()
}

#[tokio::test]
async fn a_pair_gets_its_own_connection_again() {
    let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
    let (link, peers) = (shim(&tls).await, Peers::new(tls));
    let until = Instant::now() + Duration::from_secs(60);
    let take = |caller| peers.take_for(pair(caller), &link, until, false);
    let leases = [take("one").await.unwrap(), take("two").await.unwrap()];
    let [one, two] = leases.each_ref().map(port);
    for lease in leases {
        peers.put_back(&link, lease);
    }
    for (caller, expected) in [("one", one), ("two", two), ("one", one)] {
        let lease = take(caller).await.unwrap();
        assert_eq!(port(&lease), expected, "{caller}");
        peers.put_back(&link, lease);
    }
    // That of `two` was not used for longest, and is the new pair's from now on.
    let third = take("three").await.unwrap();
    assert_eq!(port(&third), two);
    let fourth = take("two").await.unwrap();
    assert_eq!(port(&fourth), one);
    peers.put_back(&link, third);
    assert_eq!(port(&take("three").await.unwrap()), two);
}

/// As a firewall that drops packets: the machine's queue of new connections is full.
#[tokio::test]
async fn a_short_deadline_is_long_enough_to_learn_that_an_address_does_not_answer() {
    let tls = Tls::new(NodeKey::fresh().unwrap()).unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let silent = socket.listen(1).unwrap();
    let address = silent.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = timeout(CONNECT_MAX / 10, TcpStream::connect(address)).await {
        queued.push(stream.unwrap());
    }
    let link =
        Link { address: address.to_string(), shim: "aa".to_owned(), proof: tls.proof().unwrap() };
    let peers = Peers::new(tls);
    let soon = Instant::now() + CONNECT_MAX / 20;
    assert!(peers.take(&link, soon, false).await.is_err());
    assert!(peers.avoids(&link).is_none(), "it may just be slow");
    while peers.avoids(&link).is_none() {
        sleep(CONNECT_MAX / 20).await;
    }
    let error = peers.take(&link, Instant::now() + CONNECT_MAX * 60, false).await.unwrap_err();
    assert!(matches!(error, PeerError::Address { .. }), "{error}");
}
