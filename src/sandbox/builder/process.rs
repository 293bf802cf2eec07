//! `create` without a container, for `cwasi run --local`. Runs in the builder.
//!
//! Sandbox init is a process of the daemon's user: no namespaces, no cgroup, no root of its own. It has the other
//! barriers of a function ([`executor`](super::executor)), and can open only its own directories
//! ([`HostPaths`]). Like libcontainer's init, it waits on a socket for the word that starts its workload.
//!
//! Invariant: init ends with the daemon, and its workers end with it.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use libcontainer::oci_spec::runtime::{Mount, Spec};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout, getppid, linkat};

use crate::host_paths::HostPaths;
use crate::{exit_codes, stderr};
use cwasi_sys::process::{Fork, SingleThreaded, die_with_parent, exit_now};
use cwasi_sys::resolved_path::{Links, ResolvedPath};
use cwasi_vm::Engine;
use cwasi_wire::control::{CreateSpec, START_SOCKET, START_WORD, VerbRequest, Workload};

use super::diagnostics::Diagnostics;
use super::executor::{LoadedFunction, run};
use super::function::{Descriptors, load};
use super::spec::parse;
use super::{BuilderError, Made, function_devices, mount_sources, root_folders};

/// What libcontainer makes in the root of a function's container.
const CONTAINER_FOLDERS: [&str; 2] = ["/dev", "/proc"];
/// Option of a mount that forbids writing.
const READ_ONLY: &str = "ro";

/// Makes sandbox init, which waits for its start.
pub fn create<E: Engine>(
    threads: SingleThreaded,
    request: &VerbRequest,
    create: &CreateSpec,
    descriptors: Vec<OwnedFd>,
) -> Result<Made, BuilderError> {
    let Workload::Function(launch) = &create.workload else {
        return Err(BuilderError::NotAFunction { id: request.container.clone() });
    };
    let spec = parse(create)?;
    let Descriptors { stdin, stdout, stderr, sockets } =
        Descriptors::take(&create.workload, descriptors)?;
    let mut function = load::<E>(threads, launch, &stderr, sockets)?;
    function.host_paths = host_paths(&create.bundle, &spec)?;
    let failed = |operation| {
        let path = request.root.join(&request.container);
        move |source: io::Error| BuilderError::Init { operation, path, source }
    };
    let start = listen(&request.root.join(&request.container)).map_err(failed("listening in"))?;
    // Init's parent too: it is forked as this process's sibling.
    let daemon = getppid();
    match threads.fork_sibling().map_err(failed("forking init of"))? {
        Fork::Parent(pid) => Ok(Made { pid, terminal: None }),
        Fork::Child => {
            Diagnostics::stop();
            let entered = enter(daemon, [stdin, stdout, stderr]).and_then(|()| wait(start));
            let code = match entered {
                Ok(()) => run(function, &spec),
                Err(error) => not_started(&function, &error),
            };
            exit_now(code)
        }
    }
}

fn not_started<M>(function: &LoadedFunction<M>, error: &io::Error) -> i32 {
    let name = &function.launch.identity.function;
    stderr::line(&format!("the process of {name} cannot be set up: {error}"));
    exit_codes::START_FAILED
}

/// The socket on which init waits. Its path may be too long for one, its name in the directory is not.
fn listen(state: &Path) -> io::Result<UnixListener> {
    fs::create_dir_all(state)?;
    let directory = fs::File::open(state)?;
    UnixListener::bind(format!("/proc/self/fd/{}/{START_SOCKET}", directory.as_raw_fd()))
}

/// Takes the streams, and ties this process's life to the daemon's.
fn enter(daemon: Pid, [stdin, stdout, stderr]: [OwnedFd; 3]) -> io::Result<()> {
    die_with_parent(daemon)?;
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    Ok(())
}

/// Waits for the start, as libcontainer's init does.
fn wait(start: UnixListener) -> io::Result<()> {
    let (mut shim, _address) = start.accept()?;
    let mut word = vec![0; START_WORD.len()];
    shim.read_exact(&mut word)
}

/// The directories of the function's root and mounts, each with a folder where a container has one. Mounted files are
/// linked or copied into the root.
fn host_paths(bundle: &Path, spec: &Spec) -> Result<HostPaths, BuilderError> {
    let root = spec.root().as_ref().map_or_else(|| "rootfs".into(), |root| root.path().clone());
    let opened = ResolvedPath::open(&bundle.join(root), Links::Follow);
    let opened = opened.map_err(|source| BuilderError::MountSource {
        target: "/".into(),
        source: Box::new(source),
    })?;
    let root = opened.by_descriptor();
    for name in CONTAINER_FOLDERS {
        root_folders::make_folder(&root, Path::new(name))?;
    }
    let devices = root.join("dev");
    function_devices::link_streams(&devices).map_err(not_mounted("making links in", &devices))?;
    root_folders::make_working_directory(spec, &root)?;
    let mut host_paths = HostPaths::new(opened);
    for mut mount in spec.mounts().clone().unwrap_or_default() {
        if mount.source().is_none() {
            continue;
        }
        let source = mount_sources::resolve(&mut mount)?;
        let target = mount.destination();
        if source.is_folder() {
            let around = host_paths.locate(target);
            root_folders::make_folder(&around.path, &around.below)?;
            host_paths.add(target.clone(), source, is_read_only(&mount));
        } else {
            put(&source, &root, &mount)?;
        }
    }
    Ok(host_paths)
}

fn is_read_only(mount: &Mount) -> bool {
    mount.options().as_ref().is_some_and(|all| all.iter().any(|option| option == READ_ONLY))
}

/// Puts a mounted file into the root.
fn put(source: &ResolvedPath, root: &Path, mount: &Mount) -> Result<(), BuilderError> {
    let target = mount.destination();
    if !is_read_only(mount) {
        let source = io::Error::other(
            "a single file can only be mounted with readOnly, or its folder: this function has no container",
        );
        return Err(not_mounted("mounting", target)(source));
    }
    let inside = root.join(target.strip_prefix("/").unwrap_or(target));
    let made = inside.parent().map_or(Ok(()), fs::create_dir_all);
    // The descriptor's own path is a link, which a hard link has to follow. Another file system, or another user's file,
    // takes no link.
    let file = source.by_descriptor();
    let link = || linkat(AT_FDCWD, &file, AT_FDCWD, &inside, AtFlags::AT_SYMLINK_FOLLOW);
    let put = || link().or_else(|_| fs::copy(&file, &inside).map(drop));
    made.and_then(|()| put()).map_err(not_mounted("mounting", target))
}

fn not_mounted(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuilderError {
    let path = path.to_owned();
    move |source| BuilderError::Mount { operation, path, source: source.into() }
}
