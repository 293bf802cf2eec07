//! Packets that do not arrive: a filter on the loopback interface of this thread's network, which is a test's own.

use std::process::Command;

/// Which packets from and to a TCP port are dropped.
#[derive(Clone, Copy, Debug)]
pub enum Dropped {
    All,
    /// So many of a hundred, at random.
    Percent(u32),
    /// Those with more bytes.
    LongerThan(u32),
}

/// Drops packets until it is dropped itself.
pub struct PacketFilter(());

impl PacketFilter {
    /// Takes a network of the test's own ([`cwasi_testbed::netns`]) and root.
    pub fn of_port(port: u16, dropped: Dropped) -> Self {
        // Once for a network.
        let _there = tc(&["qdisc", "add", "dev", "lo", "clsact"]);
        let program = program(port, dropped);
        let rule = ["filter", "add", "dev", "lo", "ingress", "pref", "1", "protocol", "all"];
        let filter = ["bpf", "bytecode", &program, "direct-action"];
        tc(&[&rule[..], &filter].concat()).unwrap();
        Self(())
    }
}

impl Drop for PacketFilter {
    fn drop(&mut self) {
        tc(&["filter", "del", "dev", "lo", "ingress", "pref", "1"]).unwrap();
    }
}

fn tc(args: &[&str]) -> Result<(), String> {
    let output = Command::new("tc").args(args).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(said)
}

/// A program for the kernel's packet filter (classic BPF), as tc reads it: `number of lines,code jt jf k,…`.
fn program(port: u16, dropped: Dropped) -> String {
    /// Where the filter finds a random number.
    const RANDOM: u32 = 0xffff_f038;
    let random = format!("32 0 0 {RANDOM}");
    // The word to look at, and a jump over "keep".
    let [word, jump] = match dropped {
        Dropped::All => [random, "53 1 0 0".to_owned()],
        Dropped::Percent(share) => [random, format!("53 0 1 {}", u32::MAX / 100 * share)],
        Dropped::LongerThan(length) => ["128 0 0 0".to_owned(), format!("37 1 0 {length}")],
    };
    let lines = [
        // IPv4, TCP, the port as source or destination; otherwise keep.
        "40 0 0 12".to_owned(),
        "21 0 8 2048".to_owned(),
        "48 0 0 23".to_owned(),
        "21 0 6 6".to_owned(),
        "40 0 0 34".to_owned(),
        format!("21 2 0 {port}"),
        "40 0 0 36".to_owned(),
        format!("21 0 2 {port}"),
        word,
        jump,
        // Keep, drop.
        "6 0 0 0".to_owned(),
        "6 0 0 2".to_owned(),
    ];
    format!("{},{}", lines.len(), lines.join(","))
}
