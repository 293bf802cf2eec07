//! What a shim learns about one that does not answer.

use std::net::Ipv4Addr;

use tokio::net::TcpSocket;

use super::super::key::NodeKey;
use super::*;

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
