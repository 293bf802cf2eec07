use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::prelude::CommandExt;
use std::path::{Path, PathBuf};
use std::{process, thread, time};

use nix::sys::memfd::{MemFdCreateFlag, memfd_create};
use nix::sys::signal;
use nix::unistd::Pid;
use oci_spec::runtime::{Hook, State as OciState};

use crate::container::{State, StateConversionError};
use crate::utils;

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("the {stage} hook {path:?} failed: {source}{}", said(.stderr))]
    Hook {
        stage: &'static str,
        path: PathBuf,
        source: Box<HookError>,
        /// The last of what it wrote to its stderr.
        stderr: String,
    },
    #[error("failed to execute hook command: {0}")]
    CommandExecute(#[source] std::io::Error),
    #[error("failed to encode container state")]
    EncodeContainerState(#[source] serde_json::Error),
    #[error("hook command exited with non-zero exit code: {0}")]
    NonZeroExitCode(i32),
    #[error("hook command was killed by a signal")]
    Killed,
    #[error("failed to execute hook command due to a timeout")]
    Timeout,
    #[error("container state is required to run hook")]
    MissingContainerState,
    #[error("failed to write container state to stdin: {0}")]
    WriteContainerState(#[source] std::io::Error),
    #[error("failed to convert state to OCI format")]
    StateConversion(#[from] StateConversionError),
}

type Result<T> = std::result::Result<T, HookError>;

/// Bytes of a hook's stderr that an error quotes.
const STDERR_QUOTED: u64 = 2048;

fn said(stderr: &str) -> String {
    match stderr.trim() {
        "" => String::new(),
        text => format!("; its stderr: {text}"),
    }
}

/// Runs the hooks of a stage in order, up to the first one that fails.
pub fn run_hooks(
    stage: &'static str,
    hooks: Option<&Vec<Hook>>,
    state: Option<&State>,
    // TODO: Remove the following parameters. To comply with the OCI State, hooks should only depend on structures defined in oci-spec-rs. Cleaning these up ensures proper functional isolation.
    cwd: Option<&Path>,
    pid: Option<Pid>,
    default_env: Option<&HashMap<String, String>>,
) -> Result<()> {
    let base_state = state.ok_or(HookError::MissingContainerState)?;

    // High-level container runtimes use OCI state to pass the container state to the hooks.
    // So we need to convert the container state to OCI state.
    // Ref: https://github.com/containerd/containerd/blob/v2.2.1/cmd/containerd/command/oci-hook.go#L82
    let mut oci_state = OciState::try_from(base_state)?;

    // The `pid` parameter allows overriding the PID in the state. This is needed because
    // high-level container runtimes like containerd set the PID separately for certain hooks.
    // Ref: https://github.com/containerd/containerd/blob/main/cmd/containerd/command/oci-hook.go#L90
    if let Some(override_pid) = pid {
        oci_state.set_pid(Some(override_pid.as_raw()));
    }

    for hook in hooks.into_iter().flatten() {
        // Not a pipe: a process that the hook leaves behind may keep it open.
        let stderr = memfd_create(c"hook-stderr", MemFdCreateFlag::MFD_CLOEXEC)
            .map(File::from)
            .map_err(|errno| HookError::CommandExecute(errno.into()))?;
        let outcome = run_hook(hook, &oci_state, &stderr, cwd, default_env);
        let text = last_of(&stderr);
        // It has been this process's stderr so far.
        let _ = std::io::stderr().write_all(text.as_bytes());
        outcome.map_err(|source| HookError::Hook {
            stage,
            path: hook.path().clone(),
            source: Box::new(source),
            stderr: text,
        })?;
    }

    Ok(())
}

fn last_of(stderr: &File) -> String {
    let written = stderr.metadata().map_or(0, |metadata| metadata.len());
    let quoted = written.min(STDERR_QUOTED);
    let mut bytes = vec![0; quoted as usize];
    match stderr.read_exact_at(&mut bytes, written - quoted) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

fn run_hook(
    hook: &Hook,
    oci_state: &OciState,
    stderr: &File,
    cwd: Option<&Path>,
    default_env: Option<&HashMap<String, String>>,
) -> Result<()> {
    let mut hook_command = process::Command::new(hook.path());

    if let Some(cwd) = cwd {
        hook_command.current_dir(cwd);
    }

    // Based on OCI spec, the first argument of the args vector is the
    // arg0, which can be different from the path.  For example, path
    // may be "/usr/bin/true" and arg0 is set to "true". However, rust
    // command differentiates arg0 from args, where rust command arg
    // doesn't include arg0. So we have to make the split arg0 from the
    // rest of args.
    if let Some((arg0, args)) = hook.args().as_ref().and_then(|a| a.split_first()) {
        tracing::debug!("run_hooks arg0: {:?}, args: {:?}", arg0, args);
        hook_command.arg0(arg0).args(args)
    } else {
        hook_command.arg0(hook.path().display().to_string())
    };

    let envs: HashMap<String, String> = if let Some(env) = hook.env() {
        utils::parse_env(env)
    } else if let Some(default) = default_env {
        default.clone()
    } else {
        HashMap::new()
    };
    tracing::debug!("run_hooks envs: {:?}", envs);

    let mut hook_process = hook_command
        .env_clear()
        .envs(envs)
        .stdin(process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(stderr.try_clone().map_err(HookError::CommandExecute)?)
        .spawn()
        .map_err(HookError::CommandExecute)?;
    let hook_process_pid = Pid::from_raw(hook_process.id() as i32);
    // Based on the OCI spec, we need to pipe the container state into
    // the hook command through stdin.
    if let Some(stdin) = &mut hook_process.stdin {
        // We want to ignore BrokenPipe here. A BrokenPipe indicates
        // either the hook is crashed/errored or it ran successfully.
        // Either way, this is an indication that the hook command
        // finished execution.  If the hook command was successful,
        // which we will check later in this function, we should not
        // fail this step here. We still want to check for all the other
        // error, in the case that the hook command is waiting for us to
        // write to stdin.
        let encoded_state =
            serde_json::to_string(oci_state).map_err(HookError::EncodeContainerState)?;
        if let Err(e) = stdin.write_all(encoded_state.as_bytes()) {
            if e.kind() != ErrorKind::BrokenPipe {
                // Not a broken pipe. The hook command may be waiting
                // for us.
                let _ = signal::kill(hook_process_pid, signal::Signal::SIGKILL);
                return Err(HookError::WriteContainerState(e));
            }
        }
    }

    let res = if let Some(timeout_sec) = hook.timeout() {
        // Rust does not make it easy to handle executing a command and
        // timeout. Here we decided to wait for the command in a
        // different thread, so the main thread is not blocked. We use a
        // channel shared between main thread and the wait thread, since
        // the channel has timeout functions out of the box. Rust won't
        // let us copy the Command structure, so we can't share it
        // between the wait thread and main thread. Therefore, we will
        // use pid to identify the process and send a kill signal. This
        // is what the Command.kill() does under the hood anyway. When
        // timeout, we have to kill the process and clean up properly.
        let (s, r) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let res = hook_process.wait();
            let _ = s.send(res);
        });
        match r.recv_timeout(time::Duration::from_secs(timeout_sec as u64)) {
            Ok(res) => res,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                // Kill the process. There is no need to further clean
                // up because we will be error out.
                let _ = signal::kill(hook_process_pid, signal::Signal::SIGKILL);
                return Err(HookError::Timeout);
            }
            Err(_) => {
                unreachable!();
            }
        }
    } else {
        hook_process.wait()
    };

    match res {
        Ok(exit_status) => match exit_status.code() {
            Some(0) => Ok(()),
            Some(exit_code) => Err(HookError::NonZeroExitCode(exit_code)),
            None => Err(HookError::Killed),
        },
        Err(e) => Err(HookError::CommandExecute(e)),
    }
}
