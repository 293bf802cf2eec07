//! The `poststop` hooks of a container whose daemon has died. Runs in `delete`, as its last step: containerd gives it a
//! few seconds. libcontainer runs those of every other container.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cwasi_host::state::ContainerRecord;
use nix::sys::memfd::{MFdFlags, memfd_create};
use oci_spec::runtime::{Hook, Spec};
use serde_json::json;

/// File of a bundle with the specification.
const CONFIG: &str = "config.json";
/// Longest run of a hook that names no timeout.
const HOOK_MAX: Duration = Duration::from_secs(30);
/// Pause between two looks at a hook.
const PAUSE: Duration = Duration::from_millis(10);
/// Most bytes of a hook's stderr that are logged.
const STDERR_MAX: u64 = 1024;

/// A container's hooks, and its state for them.
#[derive(Debug)]
pub struct Poststop {
    id: String,
    hooks: Vec<Hook>,
    state: Vec<u8>,
}

impl Poststop {
    /// The hooks of a container that libcontainer has not deleted: then its folder of the container is there. `None` if
    /// there are none.
    #[must_use]
    pub fn of(record: &ContainerRecord, oci_folder: &Path) -> Option<Self> {
        if !oci_folder.exists() {
            return None;
        }
        let path = record.bundle.join(CONFIG);
        let spec = Spec::load(&path).map_err(|error| {
            tracing::warn!(path = %path.display(), %error, "the poststop hooks are not known");
        });
        let spec = spec.ok()?;
        let hooks = spec.hooks().as_ref()?.poststop().clone()?;
        let state = json!({
            "ociVersion": spec.version(),
            "id": record.id,
            "status": "stopped",
            "bundle": record.bundle,
            "annotations": spec.annotations(),
        });
        Some(Self { id: record.id.clone(), hooks, state: state.to_string().into_bytes() })
    }

    /// Runs the hooks in order, all of them. Logs failures.
    pub fn run(&self) {
        for hook in &self.hooks {
            if let Err(error) = self.run_hook(hook) {
                let path = hook.path().display();
                tracing::warn!(container = self.id, hook = %path, %error, "a poststop hook failed");
            }
        }
    }

    fn run_hook(&self, hook: &Hook) -> io::Result<()> {
        // Files, because a hook need not read, and a process that it leaves may keep its stderr.
        let (state, stderr) = (file()?, file()?);
        state.write_all_at(&self.state, 0)?;
        let mut command = Command::new(hook.path());
        if let Some((name, args)) = hook.args().as_ref().and_then(|args| args.split_first()) {
            command.arg0(name).args(args);
        }
        let env = hook.env().iter().flatten().filter_map(|entry| entry.split_once('='));
        command.env_clear().envs(env).stdin(state).stdout(Stdio::null());
        let mut child = command.stderr(stderr.try_clone()?).spawn()?;
        let timeout = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok());
        let ended = wait(&mut child, timeout.map_or(HOOK_MAX, Duration::from_secs))?;
        if ended.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{ended}; its stderr: {}", end_of(&stderr)?)))
    }
}

/// A file in memory.
fn file() -> io::Result<File> {
    Ok(memfd_create(c"poststop", MFdFlags::MFD_CLOEXEC)?.into())
}

/// Waits for a hook, and kills it when its time is over.
fn wait(child: &mut Child, longest: Duration) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + longest;
    loop {
        if let Some(ended) = child.try_wait()? {
            return Ok(ended);
        }
        if Instant::now() >= deadline {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(PAUSE);
    }
}

fn end_of(stderr: &File) -> io::Result<String> {
    let written = stderr.metadata()?.len();
    let from = written.saturating_sub(STDERR_MAX);
    let mut bytes = vec![0; usize::try_from(written - from).unwrap_or_default()];
    stderr.read_exact_at(&mut bytes, from)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
