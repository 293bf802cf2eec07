//! WASI of one component: what its container has. Runs in a worker.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::rc::Rc;

use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_wasi::{SocketNetwork, open_directory};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

use super::network::Rules;
use super::stdio::{Output, Stdin, Tail};

/// What all instances of a worker share.
#[derive(Debug)]
pub(super) struct WasiSettings {
    args: Vec<String>,
    env: Vec<(String, String)>,
    directories: Vec<Directory>,
    network: Option<SocketNetwork>,
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
        }))
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
        wasi.stdout(Output { fd: rustix::stdio::stdout(), tail: None });
        wasi.stderr(Output { fd: rustix::stdio::stderr(), tail: Some(tail.clone()) });
        for Directory { name, fd, perms } in &self.directories {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            wasi.preopened_dir(path, name, *perms).map_err(|error| VmError::Spec {
                what: format!("directory {name}"),
                reason: error.to_string(),
            })?;
        }
        let rules = self.network.as_ref().map(|network| Rules::new(network.sockets()));
        if let Some(rules) = &rules {
            rules.apply(&mut wasi);
        }
        Ok((wasi.build(), rules))
    }
}
