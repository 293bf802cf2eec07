//! A network for a test bed: a namespace for a guard and its descendants, with one veth pair to the machine's. Both
//! end with the last process in the namespace.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

/// The inner end of the cable.
const INNER: &str = "eth0";
/// Numbers that are tried after the one of the process.
const OTHERS_MAX: u32 = 16;
/// Both ends of the cable between two networks.
const BETWEEN: &str = "eth1";
/// What a limited cable takes at once: a millisecond of 10 Gbit/s, and more than one packet of the sender's segments.
const BURST: &str = "1250kb";
/// Longest time that a packet waits for a limited cable.
const QUEUE: &str = "50ms";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    /// The machine's end: name of the interface.
    pub outer: String,
    /// The machine's address on it.
    pub gateway: Ipv4Addr,
    pub address: Ipv4Addr,
}

impl Link {
    /// Moves this process into a network of its own. Only before it has threads.
    ///
    /// # Errors
    /// When the system refuses: it takes root.
    pub fn enter() -> Result<Self> {
        let outside = std::fs::File::open("/proc/self/ns/net").context("open our network")?;
        unshare(CloneFlags::CLONE_NEWNET).context("make a network")?;
        let pid = std::process::id();
        // The descriptor is close-on-exec, so it is named by our number of it.
        let outside = format!("--net=/proc/{pid}/fd/{}", outside.as_raw_fd());
        let in_machine =
            |args: &[&str]| run("nsenter", &[&[outside.as_str(), "ip"], args].concat());
        let inside = pid.to_string();
        let peer = ["peer", "name", INNER, "netns", &inside];
        let add = |link: &Self| {
            in_machine(&[&["link", "add", &link.outer, "type", "veth"], &peer[..]].concat())
        };
        let mut link = Self::named(pid);
        // Another fixture may have it: process ids are larger than these numbers.
        let mut added = add(&link);
        for other in 1..=OTHERS_MAX {
            if added.is_ok() {
                break;
            }
            link = Self::named(pid + other);
            added = add(&link);
        }
        added?;
        let outer = link.outer.as_str();
        let gateway = format!("{}/30", link.gateway);
        in_machine(&["addr", "add", &gateway, "dev", outer])?;
        in_machine(&["link", "set", outer, "up"])?;
        let address = format!("{}/30", link.address);
        run("ip", &["addr", "add", &address, "dev", INNER])?;
        run("ip", &["link", "set", INNER, "up"])?;
        run("ip", &["link", "set", "lo", "up"])?;
        Ok(link)
    }

    /// Four addresses and a name for each process id; ids that are 2^14 apart have the same.
    fn named(pid: u32) -> Self {
        let number = pid % (1 << 14);
        let [_, _, high, low] = (number << 2).to_be_bytes();
        let at = |last: u8| Ipv4Addr::new(10, 213, high, low + last);
        Self { outer: format!("cwasi{number}"), gateway: at(1), address: at(2) }
    }

    /// Lays a second cable, between the networks of two guards: each reaches the other's [`Self::address`].
    ///
    /// # Panics
    /// When `ip` refuses.
    pub fn join(ends: [(&Self, i32); 2]) {
        let [(one, first), (other, second)] = ends;
        let laid = || -> Result<()> {
            let name = format!("{}x", one.outer);
            let pids = [first, second].map(|pid| pid.to_string());
            let peer = ["type", "veth", "peer", "name", BETWEEN, "netns", &pids[1]];
            run("ip", &[&["link", "add", &name], &peer[..]].concat())?;
            run("ip", &["link", "set", &name, "netns", &pids[0], "name", BETWEEN])?;
            for (pid, beyond) in [(&pids[0], other), (&pids[1], one)] {
                let inside = |args: &[&str]| {
                    let network = format!("--net=/proc/{pid}/ns/net");
                    run("nsenter", &[&[network.as_str(), "ip"], args].concat())
                };
                inside(&["link", "set", BETWEEN, "up"])?;
                inside(&["route", "add", &beyond.address.to_string(), "dev", BETWEEN])?;
            }
            Ok(())
        };
        laid().unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Limits what the network of a guard sends over its cable to another network, in Mbit/s with all headers; `None` =
    /// no limit.
    ///
    /// # Panics
    /// When `tc` refuses.
    pub fn limit(guard: i32, rate: Option<u32>) {
        let network = format!("--net=/proc/{guard}/ns/net");
        let tc = |args: &[&str]| {
            run("nsenter", &[&[network.as_str(), "tc", "qdisc"], args].concat())
                .unwrap_or_else(|error| panic!("{error:#}"));
        };
        let Some(rate) = rate else { return tc(&["del", "dev", BETWEEN, "root"]) };
        let rate = format!("{rate}mbit");
        let bucket = ["tbf", "rate", &rate, "burst", BURST, "latency", QUEUE];
        tc(&[&["replace", "dev", BETWEEN, "root"], &bucket[..]].concat());
    }

    /// Cuts the cable: packets are lost silently.
    ///
    /// # Panics
    /// When `ip` refuses.
    pub fn cut(&self) {
        self.set("down");
    }

    /// Mends it.
    ///
    /// # Panics
    /// When `ip` refuses.
    pub fn mend(&self) {
        self.set("up");
    }

    fn set(&self, state: &str) {
        run("ip", &["link", "set", &self.outer, state]).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output =
        Command::new(program).args(args).output().with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
