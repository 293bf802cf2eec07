//! Calls of a component that a core module embeds. Runs in a worker.

use cwasi_components::EmbeddedComponent;
use cwasi_vm::host_calls::embedded_call::{end_call, pending_payload};

use super::binding::{Binding, act};

/// Runs the call that the dispatch has begun, and ends it. A trap is the caller's.
pub(super) fn run(component: &mut EmbeddedComponent, binding: &Binding) -> wasmtime::Result<i32> {
    let ended = act(binding, |env| {
        let payload = pending_payload(env)?;
        match component.handle_now(&payload, env.host) {
            Ok(ended) => end_call(env, ended.map(|response| Box::new(response) as _)).map(Ok),
            Err(reason) => Ok(Err(reason)),
        }
    });
    match ended {
        Ok(Ok(errno)) => Ok(errno),
        Ok(Err(reason)) => Err(wasmtime::Error::msg(reason)),
        Err(errno) => Ok(errno.code()),
    }
}
