//! Child processes of launcher and daemon, with descriptors at chosen numbers. Runs in both.
//!
//! The daemon opens its programs once ([`Program`]): after an upgrade it goes on with those that it was started with.
//!
//! Built on `posix_spawn`: no code of ours runs between fork and exec. The caller does not wait for the child,
//! because the daemon's reaper does (`std::process` and `tokio::process` would compete with it).

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;

/// Variables that children inherit. A guest that mounts `/proc` can read them in `/proc/<pid>/environ`, so all others
/// are removed.
const ENVIRONMENT: [&str; 5] =
    ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "RUST_BACKTRACE", super::arguments::EVENTS_VARIABLE];

/// A program that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error(
        "{program} is neither next to {} nor in PATH; install all binaries of the runtime",
        this.display()
    )]
    NotInstalled {
        program: &'static str,
        /// Directory of this program.
        this: PathBuf,
    },
    #[error("{} cannot be started: an argument holds a NUL byte", program.display())]
    Nul { program: PathBuf },
    /// A failed system call.
    #[error("{} cannot be started: {source}", program.display())]
    Os {
        program: PathBuf,
        #[source]
        source: Errno,
    },
}

/// Path of one of the runtime's programs: next to this one, or in `PATH`.
///
/// # Errors
/// When it is in neither place.
pub fn beside(program: &'static str) -> Result<PathBuf, SpawnError> {
    let this = std::env::current_exe().unwrap_or_default();
    let candidate = this.with_file_name(program);
    if candidate.is_file() {
        return Ok(candidate);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or(SpawnError::NotInstalled { program, this })
}

/// A program that is opened already: what is later installed at its path does not matter.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    file: OwnedFd,
}

impl Program {
    /// Opens one of the runtime's programs: next to this one, or in `PATH`.
    ///
    /// # Errors
    /// When it is in neither place, or cannot be read.
    pub fn beside(name: &'static str) -> Result<Self, SpawnError> {
        Self::open(beside(name)?)
    }

    /// Opens the program at `path`. Scripts cannot be executed this way: the interpreter would not find them.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(path: PathBuf) -> Result<Self, SpawnError> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        match nix::fcntl::open(&path, flags, Mode::empty()) {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(SpawnError::Os { program: path, source }),
        }
    }

    /// Where it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts it like [`spawn`], with more variables. It runs under the name of its descriptor until it sets another.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn spawn<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        descriptors: &[(BorrowedFd<'_>, RawFd)],
        variables: &[(&str, &str)],
    ) -> Result<i32, SpawnError> {
        start(&self.path, Some(self.file.as_fd()), arguments, descriptors, variables)
    }
}

/// Starts `program` with [`ENVIRONMENT`] and `variables`, the arguments (without the program's name) and `descriptors`
/// at the given numbers. Returns the process id.
///
/// # Errors
/// When the program cannot be executed.
pub fn spawn<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    descriptors: &[(BorrowedFd<'_>, RawFd)],
    variables: &[(&str, &str)],
) -> Result<i32, SpawnError> {
    start(program, None, arguments, descriptors, variables)
}

/// Starts the program `file`, or else the one at the path `program`.
fn start<A: AsRef<OsStr>>(
    program: &Path,
    file: Option<BorrowedFd<'_>>,
    arguments: &[A],
    descriptors: &[(BorrowedFd<'_>, RawFd)],
    variables: &[(&str, &str)],
) -> Result<i32, SpawnError> {
    let os = |source| SpawnError::Os { program: program.to_owned(), source };
    let text = |bytes: &OsStr| {
        CString::new(bytes.as_bytes()).map_err(|_| SpawnError::Nul { program: program.to_owned() })
    };
    let mut argv = vec![text(program.as_os_str())?];
    for argument in arguments {
        argv.push(text(argument.as_ref())?);
    }
    let mut environment = Vec::new();
    for key in ENVIRONMENT {
        let Some(value) = std::env::var_os(key) else { continue };
        let mut variable = OsStr::new(key).to_owned();
        variable.push("=");
        variable.push(value);
        environment.push(text(&variable)?);
    }
    for (key, value) in variables {
        environment.push(text(OsStr::new(&format!("{key}={value}")))?);
    }
    let mut actions = PosixSpawnFileActions::init().map_err(os)?;
    // Moves sources out of the way first: a target number may be another entry's source.
    let floor = descriptors.iter().map(|(_, target)| *target).max().unwrap_or(0) + 1;
    let raise = |source: BorrowedFd<'_>| {
        let raised = nix::fcntl::fcntl(source, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(floor));
        raised.map(RaisedDescriptor).map_err(os)
    };
    let mut moved = Vec::new();
    for (source, target) in descriptors {
        let high = raise(*source)?;
        actions.add_dup2(high.as_raw_fd(), *target).map_err(os)?;
        moved.push(high);
    }
    let file = file.map(raise).transpose()?;
    let executed = match &file {
        Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
        None => program.to_owned(),
    };
    let mut attributes = PosixSpawnAttr::init().map_err(os)?;
    let mut defaults = SigSet::empty();
    // Rust programs ignore the signal; the child decides for itself.
    defaults.add(Signal::SIGPIPE);
    attributes.set_sigdefault(&defaults).map_err(os)?;
    attributes.set_sigmask(&SigSet::empty()).map_err(os)?;
    let flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
    attributes.set_flags(flags).map_err(os)?;
    posix_spawn(&*executed, &actions, &attributes, &argv, &environment)
        .map(nix::unistd::Pid::as_raw)
        .map_err(os)
}

/// A duplicate descriptor for the duration of the spawn.
struct RaisedDescriptor(RawFd);

impl Drop for RaisedDescriptor {
    fn drop(&mut self) {
        // A failed close of our own duplicate has no remedy.
        let _ = nix::unistd::close(self.0);
    }
}

impl AsRawFd for RaisedDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}
