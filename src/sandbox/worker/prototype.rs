//! A callee of the paper's prototype (2023) as the handler of a request: the payload is its second argument, its result
//! comes in a sentence. Runs in a worker.

use cwasi_abi::prototype::FUNCTION;
use cwasi_modes::{CallError, CallResult, Payload};
use cwasi_vm::engine::{GuestStop, InstanceSpec};
use cwasi_vm::{Host, Instance, Module};
use cwasi_wire::control::FunctionLaunch;

use crate::cause_chain::cause_chain;

/// What the prototype passes as the last argument.
const LAST_ARGUMENT: &str = "15";
/// What the prototype answers, before the result.
const ANSWER: &str = "hello world from from fnB socket server. Result from Module B : ";

/// Runs one request in an instance of its own.
pub fn run<M: Module>(
    module: &M,
    spec: &InstanceSpec,
    payload: &Payload,
    host: &mut Host,
    launch: &FunctionLaunch,
) -> CallResult {
    let function = &launch.identity.function;
    let argument = argument(payload).map_err(|why| CallError::Failed {
        message: format!("{function}: its payload cannot be an argument: {why}"),
    })?;
    let program = spec.args.first().cloned().unwrap_or_default();
    let args = vec![program, argument, LAST_ARGUMENT.to_owned()];
    let spec = InstanceSpec { args, ..spec.clone() };
    let mut instance = module
        .instantiate(&spec, host)
        .map_err(|error| CallError::Failed { message: cause_chain(&error) })?;
    host.handler_begins();
    match instance.call(FUNCTION, &[], host) {
        Ok(result) => {
            let answer = format!("{ANSWER}{}", result.unwrap_or_default());
            Ok(Payload::Inline(answer.into_bytes()))
        }
        Err(GuestStop::Exited(code)) => Err(CallError::Failed {
            message: format!("{function} called exit({code}) instead of answering"),
        }),
        Err(GuestStop::Trapped(trap)) => {
            Err(CallError::Trapped { message: format!("{function}: {trap}") })
        }
    }
}

/// The payload as the text that it has to be.
fn argument(payload: &Payload) -> Result<String, String> {
    let bytes = payload.clone().into_vec().map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_not_text| "it is not UTF-8")?;
    if text.contains('\0') { Err("it has a zero byte".to_owned()) } else { Ok(text) }
}
