//! WASI of one component: what its container has. Runs in a worker.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::rc::Rc;

use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_wasi::{SocketNetwork, open_directory};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::fchdir;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

use super::output::{Stderr, Stdout, Tail};
use super::requests::{Outgoing, Requests};
use super::rules::Rules;
use super::stdin::Stdin;

/// The working directory.
const HERE: &str = ".";

/// What all instances of a worker share.
#[derive(Debug)]
pub(super) struct WasiSettings {
    args: Vec<String>,
    env: Vec<(String, String)>,
    directories: Vec<Directory>,
    network: Option<SocketNetwork>,
    outgoing: Option<Outgoing>,
}

#[derive(Debug)]
struct Directory {
    /// Its name in the guest.
    name: String,
    /// Opened once, below its root.
    fd: OwnedFd,
    perms: FsPerms,
}

impl WasiSettings {
    /// Opens the directories; a preopen that is no directory is left out.
    ///
    /// # Errors
    /// [`VmError::Spec`] for a directory whose name is not UTF-8.
    pub(super) fn new(
        spec: &InstanceSpec,
        network: Option<&SocketNetwork>,
        outgoing: Option<&Outgoing>,
    ) -> Result<Rc<Self>, VmError> {
        let mut directories = Vec::new();
        for preopen in &spec.preopens {
            let name = preopen.name.to_str().ok_or_else(|| VmError::Spec {
                what: format!("directory {}", preopen.name.display()),
                reason: "its path is not UTF-8".into(),
            })?;
            let perms = if preopen.read_only { FsPerms::ReadOnly } else { FsPerms::ReadWrite };
            let Some(fd) = open_directory(preopen) else { continue };
            directories.push(Directory { name: name.to_owned(), fd, perms });
        }
        let pair = |text: &String| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            (key.to_owned(), value.to_owned())
        };
        Ok(Rc::new(Self {
            args: spec.args.clone(),
            env: spec.env.iter().map(pair).collect(),
            directories,
            network: network.cloned(),
            outgoing: outgoing.cloned(),
        }))
    }

    /// HTTP requests of a new instance with these rules.
    pub(super) fn requests(&self, rules: Option<&Rules>) -> Requests {
        self.outgoing.as_ref().map(|outgoing| outgoing.requests(rules)).unwrap_or_default()
    }

    /// WASI of a new instance, with the rules of its sockets. The end of stderr goes to `tail`.
    ///
    /// # Errors
    /// When a directory cannot be opened again.
    pub(super) fn context(&self, tail: &Tail) -> Result<(WasiCtx, Option<Rules>), VmError> {
        let mut wasi = WasiCtxBuilder::new();
        // No thread for files.
        wasi.allow_blocking_current_thread(true);
        wasi.args(&self.args).envs(&self.env);
        wasi.stdin(Stdin);
        wasi.stdout(Stdout);
        wasi.stderr(Stderr(tail.clone()));
        self.preopen(&mut wasi)?;
        let rules = self.network.as_ref().map(|network| Rules::new(network.sockets()));
        if let Some(rules) = &rules {
            rules.apply(&mut wasi);
        }
        Ok((wasi.build(), rules))
    }

    /// wasmtime-wasi opens directories by a path only, and `/proc/self/fd` is closed to a process that is not dumpable:
    /// each is opened as `.` from inside.
    fn preopen(&self, wasi: &mut WasiCtxBuilder) -> Result<(), VmError> {
        if self.directories.is_empty() {
            return Ok(());
        }
        let refused = |name: &str, reason: String| VmError::Spec {
            what: format!("directory {name}"),
            reason,
        };
        let enter = |fd: BorrowedFd<'_>, name: &str| {
            fchdir(fd).map_err(|error| refused(name, error.to_string()))
        };
        let here = open(HERE, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        let here = here.map_err(|error| refused(HERE, error.to_string()))?;
        let mut opened = Ok(());
        for Directory { name, fd, perms } in &self.directories {
            opened = enter(fd.as_fd(), name).and_then(|()| {
                let opened = wasi.preopened_dir(HERE, name, *perms);
                opened.map(|_wasi| ()).map_err(|error| refused(name, error.to_string()))
            });
            if opened.is_err() {
                break;
            }
        }
        enter(here.as_fd(), HERE)?;
        opened
    }
}
