//! Child processes of launcher and daemon, with descriptors at chosen numbers. Runs in both.
//!
//! Built on `posix_spawn`: no code of ours runs between fork and exec. The caller does not wait for the child,
//! because the daemon's reaper does (`std::process` and `tokio::process` would compete with it).

use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::{SigSet, Signal};

/// Variables that children inherit. A guest that mounts `/proc` can read them in `/proc/<pid>/environ`, so all others
/// are removed.
const ENVIRONMENT: [&str; 5] =
    ["PATH", "LD_LIBRARY_PATH", "TMPDIR", "RUST_BACKTRACE", super::arguments::EVENTS_VARIABLE];

/// A program that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Not installed.
    #[error(
        "{program} is neither next to {} nor in PATH; install all binaries of the runtime",
        this.display()
    )]
    NotInstalled {
        /// Its name.
        program: &'static str,
        /// Directory of this program.
        this: PathBuf,
    },
    /// An argument or variable holds a NUL byte.
    #[error("{} cannot be started: an argument holds a NUL byte", program.display())]
    Nul {
        /// The program.
        program: PathBuf,
    },
    /// A failed system call.
    #[error("{} cannot be started: {source}", program.display())]
    Os {
        /// The program.
        program: PathBuf,
        /// The cause.
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

/// Starts `program` with [`ENVIRONMENT`], the arguments (without the program's name) and `descriptors` at the given
/// numbers. Returns the process id.
///
/// # Errors
/// When the program cannot be executed.
pub fn spawn<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    descriptors: &[(BorrowedFd<'_>, RawFd)],
) -> Result<i32, SpawnError> {
    spawn_with(program, arguments, descriptors, None)
}

/// Like [`spawn`], with one more variable.
///
/// # Errors
/// When the program cannot be executed.
pub fn spawn_with<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    descriptors: &[(BorrowedFd<'_>, RawFd)],
    variable: Option<(&str, &str)>,
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
    if let Some((key, value)) = variable {
        environment.push(text(OsStr::new(&format!("{key}={value}")))?);
    }
    let mut actions = PosixSpawnFileActions::init().map_err(os)?;
    // Moves sources out of the way first: a target number may be another entry's source.
    let floor = descriptors.iter().map(|(_, target)| *target).max().unwrap_or(0) + 1;
    let mut moved = Vec::new();
    for (source, target) in descriptors {
        let high =
            nix::fcntl::fcntl(source, nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(floor)).map_err(os)?;
        moved.push(RaisedDescriptor(high));
        actions.add_dup2(high, *target).map_err(os)?;
    }
    let mut attributes = PosixSpawnAttr::init().map_err(os)?;
    let mut defaults = SigSet::empty();
    // Rust programs ignore the signal; the child decides for itself.
    defaults.add(Signal::SIGPIPE);
    attributes.set_sigdefault(&defaults).map_err(os)?;
    attributes.set_sigmask(&SigSet::empty()).map_err(os)?;
    let flags = PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK;
    attributes.set_flags(flags).map_err(os)?;
    posix_spawn(program, &actions, &attributes, &argv, &environment)
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
