//! A component that a core module embeds: an instance in a store of its own, in the caller's process. Runs in a worker.

use std::rc::Rc;

use cwasi_abi::Errno;
use cwasi_components::{ComponentFunction, ComponentInstance};
use cwasi_host_functions::Host;
use cwasi_modes::{CallError, Payload};
use cwasi_vm::engine::InstanceSpec;
use cwasi_vm::host_calls::embedded_call::{end_call, pending_payload};
use cwasi_vm::reactor::{HandlerInput, HandlerOutcome, PayloadHandler};

use super::binding::{Binding, act};

/// One embedded component of a VM. Its instance is made at its first call, and lives as long as the VM.
pub(super) struct EmbeddedComponent {
    function: Rc<ComponentFunction>,
    instance: Option<ComponentInstance>,
}

impl EmbeddedComponent {
    pub(super) const fn new(function: Rc<ComponentFunction>) -> Self {
        Self { function, instance: None }
    }

    fn handle(&mut self, payload: &Payload, host: &mut Host) -> HandlerOutcome<'static> {
        let made = match self.instance.take() {
            Some(instance) => Ok(instance),
            // It gets nothing of the container, as an embedded module does.
            None => self
                .function
                .instantiate(&InstanceSpec::default(), host)
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
        let ended = act(binding, |env| {
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
        });
        match ended {
            Ok(Ok(errno)) => Ok(errno),
            Ok(Err(reason)) => Err(wasmtime::Error::msg(reason)),
            Err(errno) => Ok(errno.code()),
        }
    }
}
