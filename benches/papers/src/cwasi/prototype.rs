//! The prototype of the paper, if this machine has it: two functions with its ABI in two of its containers, timed by
//! its own clock, as in its experiments.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cwasi_bench::fixture::stage;
use cwasi_bench::session::caught;
use cwasi_bench::turns::Measured;
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::run::Run as ContainerRun;
use cwasi_testbed::scene::{Scene, guests_dir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::MB;
use crate::peers;
use crate::run::Run;

/// Name of the side.
pub const PROTOTYPE: &str = "CWASI prototype";
/// What is known of it, for the conditions.
pub const ABOUT: &str = "CWASI prototype, if the machine has it: the paper’s own shim with WasmEdge’s interpreter, after the \
    others, by its own clock. “Delivery” is from its `connect` until the callee’s shim has read the message, without guests’ \
    memory; “call” until the caller’s shim has what it sends back, which is the message: the callee never runs.";
/// Guest that is caller and callee.
const GUEST: &str = "prototype.wasm";
const CALLER: &str = "func_a.wasm";
const CALLEE: &str = "func_b.wasm";
/// The prototype connects to a Redis of its authors’ network unless this variable of containerd names another one.
const REDIS: &str = "REDIS_IP";
/// Longest wait for a line: the prototype sleeps for two seconds in each call.
const LINE_MAX: Duration = Duration::from_secs(60);

/// Of each payload, what its sides have measured.
type Sized = Vec<(usize, Vec<Measured>)>;

/// Latencies of these payloads in MB; none without its program, or when it fails, which is said: the other sides of the
/// figure are measured already.
#[must_use]
pub fn measured(run: &Run, sizes: &[usize]) -> Sized {
    let Some(program) = peers::find(peers::PROTOTYPE) else { return Sized::new() };
    let mut measured = Sized::new();
    let ended = caught(|| {
        measured = measure(run, &program, sizes)?;
        Ok(())
    });
    if let Err(error) = ended {
        eprintln!("{PROTOTYPE}: left out: {error:#}");
    }
    measured
}

fn measure(run: &Run, program: &Path, sizes: &[usize]) -> Result<Sized> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(!has_both_cgroups(&mounts), "cgroup v1 and v2 are both mounted (docs/papers.md)");
    let has_redis = std::env::var_os(REDIS).is_some();
    ensure!(has_redis, "set {REDIS} to an address of this machine, as scripts/papers.sh does");
    let runtime = std::path::absolute(program)?.display().to_string();
    let scene = stage(&run.programs, "papers-prototype")?;
    let image = import(&scene, run)?;
    let new = |id: &str| ContainerRun::new(&scene.namespace, &image, id).runtime(&runtime);
    let callee = new("b").annotation("cwasi.secondary.function", "true");
    let callee = Container::start(&scene, "b", &callee.args([format!("/{CALLEE}")]))?;
    let _listens = callee.line_after("Socket created")?;
    // The first call warms up.
    let calls = 1 + run.effort.pick(30, 10);
    let mut measured = Sized::new();
    for &size in sizes {
        let id = format!("a-{size}");
        let bytes = (size * MB).to_string();
        let args = [format!("/{CALLER}"), CALLEE.to_owned(), bytes, calls.to_string()];
        let caller = Container::start(&scene, &id, &new(&id).args(args))?;
        let mut found = Measured::new(PROTOTYPE);
        for call in 0..calls {
            let sent = micros(&caller.line_after("FANOUT func duration Some(")?)?;
            let back = micros(&caller.line_after("FANIN func duration Some(")?)?;
            if call > 0 {
                found.delivery.0.push(vec![sent]);
                found.call.0.push(vec![sent + back]);
            }
        }
        measured.push((size, vec![found]));
    }
    Ok(measured)
}

/// An image with the guest under both names; its own name.
fn import(scene: &Scene, run: &Run) -> Result<String> {
    let (folder, reference) = (tempfile::tempdir()?, "localhost/prototype:papers");
    let archive = folder.path().join("image.tar");
    let mut rootfs = Rootfs::default();
    for name in [CALLER, CALLEE] {
        rootfs.file(&guests_dir(&run.programs).join(GUEST), &format!("/{name}"))?;
    }
    rootfs.write(reference, &Start::default(), &archive)?;
    scene.import(&archive);
    Ok(reference.to_owned())
}

/// True for a machine with both versions of cgroups mounted, which the prototype refuses.
fn has_both_cgroups(mounts: &str) -> bool {
    let is_mounted = |kind| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    is_mounted("cgroup") && is_mounted("cgroup2")
}

/// Microseconds at the beginning of what follows `Some(`.
fn micros(text: &str) -> Result<f64> {
    let number = text.split(')').next().unwrap_or_default();
    number.parse().with_context(|| format!("the prototype says `{text}`"))
}

/// A container until it is dropped, and what its shim prints in it.
struct Container<'a> {
    scene: &'a Scene,
    id: String,
    ctr: Child,
    lines: Receiver<String>,
}

impl<'a> Container<'a> {
    fn start(scene: &'a Scene, id: &str, run: &ContainerRun) -> Result<Self> {
        let mut command = run.command(&scene.containerd, false);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut ctr = command.spawn().context("ctr run")?;
        let stdout = ctr.stdout.take().context("stdout is a pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody reads once it has said enough.
                let _read = sender.send(line);
            }
        });
        Ok(Self { scene, id: id.to_owned(), ctr, lines })
    }

    /// What follows `begin` in the next line that begins so.
    fn line_after(&self, begin: &str) -> Result<String> {
        loop {
            let line = self.lines.recv_timeout(LINE_MAX);
            let line = line.with_context(|| format!("{PROTOTYPE} {}: no `{begin}`", self.id))?;
            if let Some(rest) = line.strip_prefix(begin) {
                return Ok(rest.to_owned());
            }
        }
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Its task may have ended, and `ctr run` may wait for ever; what is left behind shows at the scene's end. The
        // prototype's shim cannot signal a callee (EBADF).
        if let Some((pid, status)) = self.scene.task(&self.id)
            && status == "RUNNING"
        {
            let _killed = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ended = self.ctr.kill();
        let _reaped = self.ctr.wait();
        let _task = self.scene.ctr(["task", "rm", "--force", &self.id]);
        let _container = self.scene.ctr(["container", "rm", &self.id]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_are_seen() {
        let one = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n";
        let two = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert!(has_both_cgroups(&[one, two].concat()));
        assert!(!has_both_cgroups(one) && !has_both_cgroups(two));
    }

    #[test]
    fn a_time_is_read_out_of_a_line() {
        assert_eq!(micros("3910)").unwrap(), 3910.0);
        assert!(micros("None").is_err());
    }
}
