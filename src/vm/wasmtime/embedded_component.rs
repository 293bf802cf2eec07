//! A component that a core module embeds: an instance in a store of its own, in the caller's process. Runs in a worker.
#![expect(unsafe_code, reason = "host functions take the lent host")]

use std::rc::Rc;

use cwasi_abi::Errno;
use cwasi_components::{ComponentFunction, ComponentInstance};
use cwasi_host_functions::Host;
use cwasi_modes::{CallError, Payload};
use cwasi_vm::engine::{InstanceSpec, VmError};
use cwasi_vm::host_calls;
use cwasi_vm::host_calls::embedded_call::{end_call, pending_payload};
use cwasi_vm::linear_memory::LinearMemory;
use cwasi_vm::reactor::{HandlerInput, HandlerOutcome, PayloadHandler};

use super::program::Program;
use super::vm::Binding;

/// One embedded component of a VM. Its instance is made at its first call, and lives as long as the VM.
pub(super) struct EmbeddedComponent {
    program: Rc<Program>,
    /// Its place among the embedded modules.
    index: usize,
    instance: Option<ComponentInstance>,
}

impl EmbeddedComponent {
    pub(super) const fn new(program: Rc<Program>, index: usize) -> Self {
        Self { program, index, instance: None }
    }

    fn function(&self) -> Result<&ComponentFunction, VmError> {
        let part = self.program.parts.get(self.index);
        part.and_then(|part| part.component()).ok_or(VmError::Setup { what: "component" })
    }

    fn handle(&mut self, payload: &Payload, host: &mut Host) -> HandlerOutcome<'static> {
        let made = match self.instance.take() {
            Some(instance) => Ok(instance),
            // It gets nothing of the container, as an embedded module does.
            None => self
                .function()
                .and_then(|function| function.instantiate(&InstanceSpec::default(), host))
                .map(ComponentInstance::without_http),
        };
        match made {
            Ok(instance) => {
                self.instance.insert(instance).handle(HandlerInput::Whole(payload), host)
            }
            Err(error) => HandlerOutcome::Failed(error.to_string()),
        }
    }

    /// Runs the call that the dispatch has begun, and ends it. A trap is the caller's.
    pub(super) fn run(&mut self, binding: &Binding) -> wasmtime::Result<i32> {
        // SAFETY:
        // - a guest of this VM has called, and no other host function of it runs: the component has a store of its own.
        let ended = unsafe {
            host_calls::act(binding, LinearMemory::NONE, |env| {
                let payload = pending_payload(env)?;
                let ended = match self.handle(&payload, env.host) {
                    HandlerOutcome::Returned(response) => Ok(response),
                    HandlerOutcome::Failed(message) => Err(CallError::Failed { message }),
                    HandlerOutcome::Exited(code) => {
                        return Ok(Err(format!("it called exit({code})")));
                    }
                    HandlerOutcome::Trapped(trap) => return Ok(Err(trap.reason)),
                    HandlerOutcome::Answered(_) | HandlerOutcome::InPlace(_) => {
                        return Err(Errno::Internal);
                    }
                };
                end_call(env, ended.map(|response| Box::new(response) as _)).map(Ok)
            })
        };
        match ended {
            Ok(Ok(errno)) => Ok(errno),
            Ok(Err(reason)) => Err(wasmtime::Error::msg(reason)),
            Err(errno) => Ok(errno.code()),
        }
    }
}
