//! Answers of name servers, and the files that name hosts and servers (`vm::sockets::{dns, names}`).
#![no_main]

use cwasi_fuzz::memory::{DNS, bounded, bounded_beside};
use cwasi_fuzz::private::{dns_answer, names};
use cwasi_vm::sockets::dns::{ADDRESSES_MAX, RecordKind};
use cwasi_wire::egress::{HOST_NAME_MAX, host_name};
use libfuzzer_sys::fuzz_target;

/// What was asked.
const ID: u16 = 0x1234;
const NAME: &str = "db.example";
/// Most servers and domains of a `resolv.conf`.
const SERVERS_MAX: usize = 3;
const SEARCH_MAX: usize = 6;

fuzz_target!(|data: &[u8]| {
    let mut message = data.to_vec();
    // An answer to something else is dropped at once: most have the right number and are answers.
    if let [high, low, flags, ..] = &mut message[..]
        && *high & 7 != 0
    {
        [*high, *low] = ID.to_be_bytes();
        *flags |= 0x80;
    }
    for kind in [RecordKind::A, RecordKind::Aaaa] {
        let found = bounded_beside(DNS, data, 512, || dns_answer(&message, ID, NAME, kind));
        let found = found.unwrap_or_default();
        assert!(found.len() <= ADDRESSES_MAX);
        assert!(found.iter().all(|address| address.is_ipv4() == (kind == RecordKind::A)));
        assert!(found.is_empty() || message[..2] == ID.to_be_bytes());
    }
    let Ok(text) = str::from_utf8(data) else { return };
    let (hosts, servers, candidates) = bounded(data, 64, || names(text, text, NAME));
    assert!(hosts.len() <= ADDRESSES_MAX && servers.len() <= SERVERS_MAX);
    assert!(candidates.len() <= SEARCH_MAX + 1 && candidates.iter().any(|name| name == NAME));
    for name in &candidates {
        assert!(name.len() <= HOST_NAME_MAX && host_name(name).as_ref() == Some(name));
    }
});
