//! Every function with any arguments: nothing panics, and nothing outside of a guest's directories changes.

use std::fs::File;
use std::os::unix::fs::symlink;

use cwasi_wire::egress::Egress;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::{functions, socket_extensions};

/// Length of each path in [`PATHS`].
const PATH_LEN: usize = 16;
/// Paths of the same length, which lie one after the other from [`PATH`] on.
const PATHS: [&[u8; PATH_LEN]; 10] = [
    b"..////////secret",
    b"../outside/secre",
    b"../outside/evil/",
    b"relative////evil",
    b"absolute////evil",
    b"././././relative",
    b"./././././././/.",
    b"././././././new/",
    b"./////////own.py",
    b"/////////////tmp",
];

/// Functions of the list by their index.
macro_rules! call {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        fn call_function(guest: &mut Guest, which: usize, params: &[u64]) {
            let names = [$($import),*];
            let name = names[which % names.len()];
            let mut params = params.iter();
            $(if name == $import {
                $(let $param = *params.next().unwrap_or(&0) as $ty;)*
                let _outcome = guest.wasi.$method(&mut guest.memory, $($param),*);
                return;
            })*
        }
    };
}

/// The same for the extension, whose functions have the names of their imports' types.
macro_rules! call_socket {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        fn call_socket_function(guest: &mut Guest, which: usize, params: &[u64]) {
            let names = [$(stringify!($method)),*];
            let name = names[which % names.len()];
            let mut params = params.iter();
            $(if name == stringify!($method) {
                $(let $param = *params.next().unwrap_or(&0) as $ty;)*
                let _outcome = guest.wasi.$method(&mut guest.memory, $($param),*);
                return;
            })*
        }
    };
}

functions!(call);
socket_extensions!(call_socket);

fn param() -> impl Strategy<Value = u64> {
    let paths = (0..PATHS.len()).map(|index| u64::from(PATH) + (index * PATH_LEN) as u64);
    prop_oneof![
        4 => 0..9_u64,
        3 => Just(PATH_LEN as u64),
        4 => select(paths.collect::<Vec<_>>()),
        1 => 0..70000_u64,
        1 => any::<u64>(),
        1 => Just(u64::from(u32::MAX)),
        // Rights to read and write.
        1 => Just(READ | WRITE),
    ]
}

fn calls() -> impl Strategy<Value = Vec<(usize, Vec<u64>)>> {
    let call = (0..1000_usize, prop::collection::vec(param(), 9));
    prop::collection::vec(call, 1..30)
}

fn prepared(network: Option<&SocketNetwork>, bytes: &[u8]) -> Guest {
    let null = || Some(File::options().read(true).write(true).open("/dev/null").unwrap().into());
    let mut guest = Guest::with(network, [null(), null(), null()]);
    symlink("../outside", guest.host("relative")).unwrap();
    symlink(guest.root.path().join("outside"), guest.host("absolute")).unwrap();
    guest.file("own.py", "text");
    guest.memory.put(BYTES, bytes);
    guest.memory.put(OUT, &bytes[..bytes.len().min(PATH as usize)]);
    for (index, path) in (0..).zip(PATHS) {
        guest.memory.put(PATH + index * 16, path);
    }
    guest
}

/// Times of clocks become the past, as nothing else would end a wait.
fn without_waits(guest: &mut Guest, params: &[u64]) {
    let (at, count) = (params[0] as u32, params[2].min(2000) as u32);
    for index in 0..count {
        let time = at.saturating_add(index * 48).saturating_add(24);
        let _outside = guest.memory.write(GuestPtr(time), &[0; 8]);
    }
}

/// Names and contents of a directory of the host.
fn contents(guest: &Guest, name: &str) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let entries = std::fs::read_dir(guest.root.path().join(name)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut contents: Vec<_> = paths.map(|path| (path.clone(), std::fs::read(path).ok())).collect();
    contents.sort();
    contents
}

proptest! {
    #[test]
    fn nothing_outside_changes(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        calls in calls(),
    ) {
        let mut guest = prepared(None, &bytes);
        let before = ["outside", "fixed", "."].map(|name| contents(&guest, name));
        for (which, params) in calls {
            without_waits(&mut guest, &params);
            call_function(&mut guest, which, &params);
        }
        prop_assert_eq!(["outside", "fixed", "."].map(|name| contents(&guest, name)), before);
    }

    #[test]
    fn socket_functions_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        calls in calls(),
    ) {
        let network = SocketNetwork::new(Egress::default(), None).unwrap();
        let mut guest = prepared(Some(&network), &bytes);
        for kind in [1, 2] {
            guest.wasi.sock_open(&mut guest.memory, 1, kind, OUT).unwrap();
            let fd = guest.memory.u32_at(OUT);
            guest.wasi.fd_fdstat_set_flags(&mut guest.memory, fd, NONBLOCK).unwrap();
        }
        for (which, params) in calls {
            call_socket_function(&mut guest, which, &params);
            // New sockets would wait.
            let _none = guest.close(7);
        }
    }
}
