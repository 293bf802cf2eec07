//! A network namespace for one test: a thread lives in it. The namespace ends with the thread and its sockets, so a
//! killed test leaves nothing.

use std::any::Any;
use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};

type Job = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    jobs: Option<Sender<Job>>,
    results: Receiver<Box<dyn Any + Send>>,
    thread: Option<JoinHandle<()>>,
}

impl Netns {
    /// A namespace whose loopback interface has these addresses (`10.1.2.3/24`).
    ///
    /// # Panics
    /// When the system refuses: it takes root.
    #[must_use]
    pub fn new(addresses: &[&str]) -> Self {
        let addresses: Vec<String> = addresses.iter().map(|&text| text.to_owned()).collect();
        let (jobs, todo) = channel::<Job>();
        let (done, results) = channel();
        let (ready, is_ready) = channel();
        let thread = thread::spawn(move || {
            // The receiver waits for it.
            let _told = ready.send(enter(&addresses));
            for job in todo {
                if done.send(job()).is_err() {
                    return;
                }
            }
        });
        let entered = is_ready.recv().expect("the thread answers");
        let path = entered.unwrap_or_else(|error| panic!("{error:#}"));
        Self { path, jobs: Some(jobs), results, thread: Some(thread) }
    }

    /// What an OCI specification names it by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `job` in the namespace. Sockets that it opens stay there; processes that it starts do, too.
    ///
    /// # Panics
    /// When the job panics.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let job: Job = Box::new(move || Box::new(job()));
        let jobs = self.jobs.as_ref().expect("it is there until the end");
        jobs.send(job).expect("the thread lives");
        let result = self.results.recv().expect("the job does not panic");
        *result.downcast().expect("the result is the job's")
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A job's panic was one of the test's own.
            let _panicked = thread.join();
        }
    }
}

/// Connects to a port of 127.0.0.1 in the network of a file such as `/proc/PID/ns/net`.
///
/// # Errors
/// When nobody listens there.
///
/// # Panics
/// When the file is no network.
pub fn connect_in(network: File, port: u16) -> std::io::Result<TcpStream> {
    // A namespace belongs to a thread.
    let connecting = std::thread::spawn(move || {
        setns(network, CloneFlags::CLONE_NEWNET).expect("a network");
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
    });
    connecting.join().expect("it enters the network")
}

/// The same in the network of a process.
///
/// # Panics
/// When the process has ended, or does not listen.
#[must_use]
pub fn connect_to(pid: i32, port: u16) -> TcpStream {
    let network = File::open(format!("/proc/{pid}/ns/net")).expect("the process lives");
    connect_in(network, port).expect("it listens")
}

fn enter(addresses: &[String]) -> Result<PathBuf> {
    unshare(CloneFlags::CLONE_NEWNET).context("make a network")?;
    ip(&["link", "set", "lo", "up"])?;
    for address in addresses {
        // Without a check for duplicates, which a busy kernel does later: until then an IPv6 address cannot be bound.
        let check: &[&str] = if address.contains('.') { &[] } else { &["nodad"] };
        ip(&[&["addr", "add", address, "dev", "lo"], check].concat())?;
    }
    let (pid, thread) = (std::process::id(), nix::unistd::gettid());
    Ok(format!("/proc/{pid}/task/{thread}/ns/net").into())
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("run ip")?;
    if !output.status.success() {
        bail!("ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
