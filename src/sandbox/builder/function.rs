//! What a function's init is made from: its descriptors and its code. Runs in the builder.

use std::os::fd::OwnedFd;

use crate::host_paths::HostPaths;
use crate::stderr;
use cwasi_sys::process::SingleThreaded;
use cwasi_sys::reopen::append_without_waiting;
use cwasi_vm::{Engine, EngineOptions, Module, VmError};
use cwasi_wire::control::{CreateDescriptor, FunctionLaunch, Role, Workload};

use super::BuilderError;
use super::executor::LoadedFunction;
use crate::awaited::FunctionCode;

/// The descriptors of a create, after the reply socket.
#[derive(Debug)]
pub struct Descriptors {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// Broker and receiver, as far as the workload has them.
    pub sockets: Vec<OwnedFd>,
}

impl Descriptors {
    /// Takes the descriptors of a create of `workload`.
    ///
    /// # Errors
    /// When their number is wrong.
    pub fn take(workload: &Workload, descriptors: Vec<OwnedFd>) -> Result<Self, BuilderError> {
        let (expected, got) = (expected_descriptors(workload), descriptors.len());
        let mut descriptors = descriptors.into_iter();
        let stdio = (descriptors.next(), descriptors.next(), descriptors.next());
        let (Some(stdin), Some(stdout), Some(stderr), true) =
            (stdio.0, stdio.1, stdio.2, got == expected)
        else {
            return Err(BuilderError::Descriptors { expected, got });
        };
        Ok(Self { stdin, stdout, stderr, sockets: descriptors.collect() })
    }
}

/// Loads the function's code and checks that its entry is there, unless the code comes later. `sockets` are those of
/// [`Descriptors`].
///
/// # Errors
/// When the code cannot be loaded, or `stderr` cannot be opened for the function's log.
pub fn load<E: Engine>(
    threads: SingleThreaded,
    launch: &FunctionLaunch,
    stderr: &OwnedFd,
    sockets: Vec<OwnedFd>,
) -> Result<LoadedFunction<E::Module>, BuilderError> {
    let function = || launch.identity.function.clone();
    let failed = |source| BuilderError::Module { function: function(), source };
    let log = append_without_waiting(stderr)
        .map_err(|source| BuilderError::Stderr { function: function(), source })?;
    let mut sockets = sockets.into_iter();
    let Some(broker) = sockets.next() else {
        let workload = Workload::Function(Box::new(launch.clone()));
        let expected = expected_descriptors(&workload);
        return Err(BuilderError::Descriptors { expected, got: 3 });
    };
    let code = if launch.awaits_code {
        FunctionCode::Awaited(load_code::<E>)
    } else {
        FunctionCode::Loaded(load_code::<E>(launch).map_err(failed)?)
    };
    Ok(LoadedFunction {
        launch: launch.clone(),
        code,
        threads,
        broker,
        log,
        receiver: sockets.next(),
        host_paths: HostPaths::default(),
        is_filtered: false,
    })
}

/// Loads native code at the paths of a launch, and checks that its entry is there.
fn load_code<E: Engine>(launch: &FunctionLaunch) -> Result<E::Module, VmError> {
    let (memory_max, egress) = (launch.memory_max, launch.egress.clone());
    let options = EngineOptions { memory_max, egress, log: Some(stderr::try_line) };
    let module = E::new(options)?.load_with(&launch.artifact, &launch.embedded)?;
    module.check(&launch.entry)?;
    Ok(module)
}

/// Descriptors beside the reply socket.
fn expected_descriptors(workload: &Workload) -> usize {
    let last = match workload {
        Workload::Native => CreateDescriptor::Stderr,
        Workload::Function(launch) => match **launch {
            FunctionLaunch { role: Role::Primary, .. } => CreateDescriptor::Broker,
            FunctionLaunch { role: Role::Secondary, .. } => CreateDescriptor::Receiver,
        },
    };
    last as usize
}
