//! A cable between two networks of a test: a TUN device at each end, and a thread that carries the packets, if asked to
//! twice and out of order. Packets to an end without a device vanish.

#![expect(
    unsafe_code,
    reason = "the ioctl that makes a TUN device has no safe wrapper in our libraries"
)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cwasi_testbed::netns::Netns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

nix::ioctl_write_ptr_bad!(make_device, libc::TUNSETIFF, libc::ifreq);

/// Longer than any packet.
const PACKET_MAX: usize = 2048;
/// Packets of one end before the other one has its turn.
const TURN: usize = 64;
/// After so many milliseconds without a packet, nothing overtakes those that are late.
const SILENCE_MS: u8 = 2;
/// One of so many packets comes twice, and one of so many late: after this many others.
const TWICE: usize = 7;
const LATE: usize = 5;
const OVERTAKING: usize = 3;

#[derive(Debug, Default)]
struct State {
    ends: [Option<Arc<File>>; 2],
    shuffles: bool,
    ended: bool,
    /// How many packets came twice or late.
    shuffled: usize,
}

#[derive(Debug)]
pub struct Cable {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

impl Cable {
    pub fn new() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let carried = Arc::clone(&state);
        Self { state, thread: Some(std::thread::spawn(move || carry(&carried))) }
    }

    /// Makes the device of one end, with this address (`10.1.2.3/24`).
    pub fn plug(&self, end: usize, network: &Netns, address: String) {
        let device = network.run(move || device(&address));
        self.state.lock().unwrap().ends[end] = Some(Arc::new(device));
    }

    /// Removes it.
    pub fn unplug(&self, end: usize) {
        self.state.lock().unwrap().ends[end] = None;
    }

    /// Has packets come twice and out of order, or not any more; how many have so far.
    pub fn shuffle(&self, shuffles: bool) -> usize {
        let mut state = self.state.lock().unwrap();
        state.shuffles = shuffles;
        state.shuffled
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.state.lock().unwrap().ended = true;
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A device of this thread's network.
fn device(address: &str) -> File {
    let mut open = File::options();
    let device =
        open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun").unwrap();
    let flags = (libc::IFF_TUN | libc::IFF_NO_PI).try_into().unwrap();
    // Without a name, the kernel calls the first one of a network `tun0`.
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_flags: flags };
    let request = libc::ifreq { ifr_name: [0; libc::IFNAMSIZ], ifr_ifru };
    // SAFETY:
    // - the descriptor is open, and the request a whole `ifreq` that outlives the call.
    unsafe { make_device(device.as_raw_fd(), &raw const request) }.unwrap();
    for args in [&["addr", "add", address, "dev", "tun0"][..], &["link", "set", "tun0", "up"]] {
        assert!(Command::new("ip").args(args).status().unwrap().success(), "{args:?}");
    }
    device
}

fn carry(state: &Mutex<State>) {
    let mut packet = [0; PACKET_MAX];
    let mut number = 0;
    // When, to which end, and what.
    let mut late = VecDeque::<(usize, usize, Vec<u8>)>::new();
    loop {
        let (ends, shuffles) = {
            let state = state.lock().unwrap();
            if state.ended {
                return;
            }
            (state.ends.clone(), state.shuffles)
        };
        let put = |to: usize, packet: &[u8]| {
            // A device that is down or full loses it.
            let _lost = ends[to].as_deref().map(|mut end| end.write(packet));
        };
        let there = ends.iter().flatten();
        let mut polled: Vec<_> =
            there.map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)).collect();
        let is_silent = poll(&mut polled, PollTimeout::from(SILENCE_MS)).unwrap() == 0;
        for (from, to) in [(0, 1), (1, 0)] {
            let Some(mut end) = ends[from].as_deref() else { continue };
            for _ in 0..TURN {
                let Ok(length) = end.read(&mut packet) else { break };
                number += 1;
                let (is_late, is_twice) = (number % LATE == 0, number % TWICE == 0);
                if shuffles && is_late {
                    late.push_back((number + OVERTAKING, to, packet[..length].to_vec()));
                } else {
                    put(to, &packet[..length]);
                }
                if shuffles && is_twice {
                    put(to, &packet[..length]);
                }
                state.lock().unwrap().shuffled += usize::from(shuffles && (is_late || is_twice));
                while let Some((_, to, packet)) = late.pop_front_if(|(due, ..)| *due <= number) {
                    put(to, &packet);
                }
            }
        }
        if is_silent {
            late.drain(..).for_each(|(_, to, packet)| put(to, &packet));
        }
    }
}
