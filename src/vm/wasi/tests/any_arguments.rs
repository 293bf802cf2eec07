//! Every function with any arguments: nothing panics, and nothing outside of a guest's directories changes.

use std::fs::File;
use std::os::unix::fs::symlink;

use cwasi_wire::egress::Egress;
use proptest::prelude::*;

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

/// Calls a function of the list by its index.
macro_rules! call {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        fn call_function(guest: &mut Guest, which: usize, numbers: &[u64]) {
            let names = [$($import),*];
            let name = names[which % names.len()];
            let mut numbers = numbers.iter();
            $(if name == $import {
                $(let $param = param(stringify!($param), *numbers.next().unwrap()) as $ty;)*
                without_waits(guest, name, &[$(u64::from($param as u32)),*]);
                let _outcome = guest.wasi.$method(&mut guest.memory, $($param),*);
                return;
            })*
        }
    };
}

/// The same for the extension, in which two methods may have the same import.
macro_rules! call_socket {
    ($($import:literal => $method:ident($($param:ident: $ty:ident),*);)*) => {
        fn call_socket_function(guest: &mut Guest, which: usize, numbers: &[u64]) {
            let names = [$(stringify!($method)),*];
            let name = names[which % names.len()];
            let mut numbers = numbers.iter();
            $(if name == stringify!($method) {
                $(let $param = param(stringify!($param), *numbers.next().unwrap()) as $ty;)*
                let _outcome = guest.wasi.$method(&mut guest.memory, $($param),*);
                return;
            })*
        }
    };
}

functions!(call);
socket_extensions!(call_socket);

/// A parameter by its name: mostly one that fits, so that calls get far, and sometimes any number.
fn param(name: &str, number: u64) -> u64 {
    let (kind, number) = (number % 16, number / 16);
    match (kind, name) {
        (0, _) => number,
        (1, _) => u64::from(u32::MAX),
        (_, "fd" | "old_fd" | "new_fd" | "from" | "to") => number % 9,
        (_, "path" | "old_path" | "new_path" | "target") => {
            u64::from(PATH) + number % (PATHS.len() * PATH_LEN) as u64 / 16 * 16
        }
        (_, "len" | "old_len" | "new_len" | "target_len") => PATH_LEN as u64,
        (_, "lookup" | "whence" | "how" | "clock" | "which" | "count") => number % 4,
        (_, "open_flags" | "flags") => number % 16,
        (_, "rights") => number % 128,
        (_, "parts") => u64::from(PARTS),
        _ => u64::from(BYTES) + number % 4096,
    }
}

fn calls() -> impl Strategy<Value = Vec<(usize, Vec<u64>)>> {
    let call = (0..1000_usize, prop::collection::vec(any::<u64>(), 9));
    prop::collection::vec(call, 1..60)
}

fn prepared(network: Option<&SocketNetwork>, bytes: &[u8]) -> Guest {
    let null = || Some(File::options().read(true).write(true).open("/dev/null").unwrap().into());
    let mut guest = Guest::with(network, [null(), null(), null()]);
    symlink("../outside", guest.host("relative")).unwrap();
    symlink(guest.root.path().join("outside"), guest.host("absolute")).unwrap();
    guest.file("own.py", "text");
    guest.memory.put(BYTES, bytes);
    guest.memory.put(OUT, &bytes[..bytes.len().min(PATH as usize)]);
    guest.memory.words(PARTS, &[BYTES, 64, BYTES + 32, 64, BYTES + 200, 9, BYTES, 0]);
    for (index, path) in (0..).zip(PATHS) {
        guest.memory.put(PATH + index * 16, path);
    }
    guest
}

/// Times of clocks become the past, as nothing else would end a wait.
fn without_waits(guest: &mut Guest, name: &str, params: &[u64]) {
    if let ("poll_oneoff", [at, _, count, _]) = (name, params) {
        for index in 0..(*count).min(2000) {
            let Ok(time) = u32::try_from(at + index * 48 + 24) else { return };
            let _outside = guest.memory.write(GuestPtr(time), &[0; 8]);
        }
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
        for (which, numbers) in calls {
            call_function(&mut guest, which, &numbers);
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
        for (which, numbers) in calls {
            call_socket_function(&mut guest, which, &numbers);
            // New sockets would wait.
            let _none = guest.close(7);
        }
    }
}
