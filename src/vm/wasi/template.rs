//! The settings of WASI that all instances of a worker share: arguments, variables, directories, network. Runs in a
//! worker.
//!
//! Making one opens the directories. An instance refers to it, so that a new instance costs no system call and no
//! allocation.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::rc::Rc;

use cwasi_vm::engine::{InstanceSpec, Preopen, VmError};
use cwasi_vm::sockets::{Refusals, Sockets, WriteLine};
use cwasi_wire::egress::Egress;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Settings that all sockets of a function share.
#[derive(Clone, Debug)]
pub struct SocketNetwork {
    egress: Egress,
    refusals: Rc<Refusals>,
}

impl SocketNetwork {
    /// Destinations, and the receiver of refusals.
    ///
    /// # Errors
    /// When there is no memory for the list of refusals.
    pub fn new(egress: Egress, log: Option<WriteLine>) -> Result<Self, VmError> {
        let refusals =
            Refusals::new(log).map_err(|_| VmError::Setup { what: "list of refusals" })?;
        Ok(Self { egress, refusals: Rc::new(refusals) })
    }

    /// Sockets of one instance.
    #[must_use]
    pub fn sockets(&self) -> Sockets {
        Sockets::new(self.egress.clone(), Rc::clone(&self.refusals))
    }
}

/// The settings that the instances of one worker share.
#[derive(Debug, Default)]
pub struct WasiTemplate {
    pub(crate) args: Texts,
    pub(crate) env: Texts,
    pub(crate) preopens: Box<[PreopenedDirectory]>,
    pub(crate) network: Option<SocketNetwork>,
    /// Descriptors in the place of the process's stdin, stdout and stderr; set by tests.
    pub(crate) stdio: [Option<OwnedFd>; 3],
}

impl WasiTemplate {
    /// Lays out texts and opens directories; a preopen that is no directory is left out. Without `network`, instances
    /// have no sockets.
    ///
    /// # Errors
    /// [`VmError::Spec`] for a text or name with a zero byte, and for a name that is not UTF-8.
    pub fn new(spec: &InstanceSpec, network: Option<&SocketNetwork>) -> Result<Self, VmError> {
        let mut preopens = Vec::new();
        for preopen in &spec.preopens {
            preopens.extend(PreopenedDirectory::open(preopen)?);
        }
        Ok(Self {
            args: Texts::new("argument", &spec.args)?,
            env: Texts::new("environment variable", &spec.env)?,
            preopens: preopens.into(),
            network: network.cloned(),
            stdio: [const { None }; 3],
        })
    }

    /// The process's stdin (0), stdout (1) or stderr.
    pub(crate) fn stdio(&self, number: u8) -> BorrowedFd<'_> {
        match self.stdio.get(usize::from(number)) {
            Some(Some(fd)) => fd.as_fd(),
            _ if number == 0 => rustix::stdio::stdin(),
            _ if number == 1 => rustix::stdio::stdout(),
            _ => rustix::stdio::stderr(),
        }
    }
}

/// Texts as a guest reads them: one after the other, each with a zero byte at its end.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) bytes: Box<[u8]>,
    /// Where each begins.
    pub(crate) starts: Box<[u32]>,
}

impl Texts {
    fn new(what: &str, texts: &[String]) -> Result<Self, VmError> {
        let refused = |text: &str, reason: &str| VmError::Spec {
            what: format!("{what} {text:?}"),
            reason: reason.into(),
        };
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for text in texts {
            if text.contains('\0') {
                return Err(refused(text, "it contains a zero byte"));
            }
            let too_long = |_| refused(text, "all of them together are longer than 4 GiB");
            starts.push(u32::try_from(bytes.len()).map_err(too_long)?);
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
        Ok(Self { bytes: bytes.into(), starts: starts.into() })
    }
}

/// A directory that guests have from the start.
#[derive(Debug)]
pub(crate) struct PreopenedDirectory {
    /// Its name in the guest.
    pub(crate) name: Box<[u8]>,
    /// Opened with `O_PATH`.
    pub(crate) fd: OwnedFd,
    /// Guests cannot change anything below.
    pub(crate) read_only: bool,
}

impl PreopenedDirectory {
    /// `None` if there is no directory.
    fn open(preopen: &Preopen) -> Result<Option<Self>, VmError> {
        let refused = |reason: &str| VmError::Spec {
            what: format!("directory {}", preopen.name.display()),
            reason: reason.into(),
        };
        let name = preopen.name.as_os_str();
        if name.to_str().is_none() {
            return Err(refused("its path is not UTF-8"));
        }
        let has_zero = |text: &OsStr| text.as_bytes().contains(&0);
        if has_zero(name) || has_zero(preopen.path.as_os_str()) {
            return Err(refused("its path contains a zero byte"));
        }
        let Some(fd) = open_directory(preopen) else { return Ok(None) };
        let name = name.as_bytes().into();
        Ok(Some(Self { name, fd, read_only: preopen.read_only }))
    }
}

/// Opens a directory with `O_PATH`; `None` if there is none.
#[must_use]
pub fn open_directory(preopen: &Preopen) -> Option<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let open = |path: &Path| File::options().read(true).custom_flags(flags.bits()).open(path);
    let Some(inside) = &preopen.inside else {
        return open(&preopen.path).ok().map(OwnedFd::from);
    };
    let root = open(inside).ok()?;
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(&root, &preopen.path, OpenHow::new().flags(flags).resolve(resolve)).ok()
}
