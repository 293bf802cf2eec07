//! The interfaces `cwasi:calls/{types,streams,calls,context}` over the worker's [`Host`]. Runs in a worker.
//!
//! [`define`] replaces the generated functions that have lists of bytes: these copy twice.

use std::time::Duration;

use cwasi_abi::Errno;
use cwasi_host_functions::{Host, Level};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::Join;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, WasmList};
use wasmtime_wasi::p2::DynInputStream;

use super::bindings::cwasi::calls::{calls, context, streams, types};
use super::lists::{self, PassedList};
use super::resources::{GuestPayload, StartedCall};
use super::state::State;

/// Most bytes of one `read`.
const READ_MAX: u64 = 1 << 31;

/// The interfaces of the replaced functions, as the generated code names them.
const TYPES: &str = "cwasi:calls/types@0.1.0";
const CALLS: &str = "cwasi:calls/calls@0.1.0";

type Called<T> = Result<T, types::CallError>;

/// Defines the functions with lists of bytes, over the generated ones.
pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut functions = linker.instance(TYPES)?;
    functions.func_wrap("[constructor]payload", new_payload)?;
    functions.func_wrap("[method]payload.read", read)?;
    linker.instance(CALLS)?.func_wrap_async("call-bytes", |store, params| {
        // Also a fiber, which an embedded component may have to wait in.
        Box::new(call_bytes(store, params))
    })
}

fn new_payload(
    mut store: StoreContextMut<'_, State>,
    (bytes,): (WasmList<u8>,),
) -> wasmtime::Result<(Resource<GuestPayload>,)> {
    // Many bytes in a segment: calls and responses pass it on as it is.
    let kept = lists::keep(bytes.as_le_slice(&store))?;
    Ok((store.data_mut().push(kept)?,))
}

type ReadParams = (Resource<GuestPayload>, u64, u64);

fn read(
    store: StoreContextMut<'_, State>,
    (payload, offset, length): ReadParams,
) -> wasmtime::Result<(PassedList<'static>,)> {
    Ok((store.data().table.get(&payload)?.read(offset, length.min(READ_MAX)),))
}

async fn call_bytes(
    mut store: StoreContextMut<'_, State>,
    (target, payload): (String, WasmList<u8>),
) -> wasmtime::Result<(Called<PassedList<'static>>,)> {
    let length = payload.as_le_slice(&store).len() as u64;
    let ended = match store.data_mut().begin_embedded(&target, length) {
        Ok(None) => call_elsewhere(&mut store, &target, &payload),
        Ok(Some(callee)) => {
            let payload = lists::keep(payload.as_le_slice(&store))?;
            store.data_mut().run_embedded(callee, &payload).await?.map_err(call_error)
        }
        Err(error) => Err(call_error(error)),
    };
    Ok((ended.map(|response| GuestPayload(response).read(0, u64::MAX)),))
}

fn call_elsewhere(
    store: &mut StoreContextMut<'_, State>,
    target: &str,
    payload: &WasmList<u8>,
) -> Called<Payload> {
    let mut host = std::mem::take(&mut store.data_mut().host);
    let payload = OutgoingPayload::Bytes(payload.as_le_slice(&*store));
    let ended = host.with(|host| host.call(target, payload).map_err(call_error));
    store.data_mut().host = host;
    ended.unwrap_or_else(|| Err(host_failed()))
}

impl State {
    /// Runs a host function; a fault of the host is an error of the guest's call.
    fn with_host<T>(&mut self, run: impl FnOnce(&mut Host) -> Called<T>) -> Called<T> {
        let done = self.host.with(run);
        done.unwrap_or_else(|| Err(host_failed()))
    }

    /// The embedded function that serves a call of `target`, which then begins; `None` if another mode serves it.
    fn begin_embedded(&mut self, target: &str, length: u64) -> Result<Option<usize>, CallError> {
        let Self { host, callees, .. } = self;
        if callees.is_empty() {
            return Ok(None);
        }
        let begun =
            host.with(|host| host.begin_embedded(target, length, |callee| callees.name(callee)));
        begun.unwrap_or_else(|| Err(internal()))
    }

    /// Runs the call that has begun. A trap of the callee is the caller's.
    async fn run_embedded(
        &mut self,
        callee: usize,
        payload: &Payload,
    ) -> wasmtime::Result<CallResult> {
        let Self { host, callees, .. } = self;
        let ended = callees.handle(callee, payload, host).await;
        let ended = ended.map_err(|reason| {
            wasmtime::Error::msg(format!("in embedded {}: {reason}", callees.name(callee)))
        })?;
        let ended = host.with(|host| host.end_embedded(ended));
        Ok(ended.unwrap_or_else(|| Err(internal())))
    }

    fn push(&mut self, payload: Payload) -> wasmtime::Result<Resource<GuestPayload>> {
        Ok(self.table.push(GuestPayload(payload))?)
    }

    /// The handle of a started call that an embedded function has served; `None` if another mode serves it.
    async fn start_embedded(
        &mut self,
        target: &str,
        payload: &Payload,
    ) -> wasmtime::Result<Called<Option<u32>>> {
        if self.callees.is_empty() {
            return Ok(Ok(None));
        }
        if let Err(error) = self.with_host(|host| host.check_start().map_err(refused)) {
            return Ok(Err(error));
        }
        let ended = match self.begin_embedded(target, payload.len()) {
            Ok(None) => return Ok(Ok(None)),
            Ok(Some(callee)) => self.run_embedded(callee, payload).await?,
            Err(error) => Err(error),
        };
        Ok(self.with_host(|host| Ok(Some(host.keep_ended(ended)))))
    }

    /// A response as the guest gets it.
    fn answered(
        &mut self,
        ended: Called<Payload>,
    ) -> wasmtime::Result<Called<Resource<GuestPayload>>> {
        Ok(match ended {
            Ok(response) => Ok(self.push(response)?),
            Err(error) => Err(error),
        })
    }
}

impl types::Host for State {}

impl types::HostPayload for State {
    fn new(&mut self, _bytes: Vec<u8>) -> wasmtime::Result<Resource<GuestPayload>> {
        Err(replaced("[constructor]payload"))
    }

    fn length(&mut self, payload: Resource<GuestPayload>) -> wasmtime::Result<u64> {
        Ok(self.table.get(&payload)?.0.len())
    }

    fn read(
        &mut self,
        _payload: Resource<GuestPayload>,
        _offset: u64,
        _length: u64,
    ) -> wasmtime::Result<Vec<u8>> {
        Err(replaced("[method]payload.read"))
    }

    fn clone(
        &mut self,
        payload: Resource<GuestPayload>,
    ) -> wasmtime::Result<Resource<GuestPayload>> {
        let copy = self.table.get(&payload)?.clone();
        Ok(self.table.push(copy)?)
    }

    fn drop(&mut self, payload: Resource<GuestPayload>) -> wasmtime::Result<()> {
        self.table.delete(payload)?;
        Ok(())
    }
}

impl streams::Host for State {
    fn stream_of(
        &mut self,
        payload: Resource<GuestPayload>,
    ) -> wasmtime::Result<Resource<DynInputStream>> {
        let stream: DynInputStream = Box::new(self.table.get(&payload)?.stream());
        Ok(self.table.push(stream)?)
    }
}

impl calls::Host for State {
    async fn call(
        &mut self,
        target: String,
        payload: Resource<GuestPayload>,
    ) -> wasmtime::Result<Called<Resource<GuestPayload>>> {
        let GuestPayload(payload) = self.table.get(&payload)?.clone();
        let ended = match self.begin_embedded(&target, payload.len()) {
            Ok(None) => {
                self.with_host(|host| host.call(&target, payload.outgoing()).map_err(call_error))
            }
            Ok(Some(callee)) => self.run_embedded(callee, &payload).await?.map_err(call_error),
            Err(error) => Err(call_error(error)),
        };
        self.answered(ended)
    }

    fn call_bytes(
        &mut self,
        _target: String,
        _payload: Vec<u8>,
    ) -> wasmtime::Result<Called<Vec<u8>>> {
        Err(replaced("call-bytes"))
    }

    async fn start(
        &mut self,
        target: String,
        payload: Resource<GuestPayload>,
        part: Option<calls::Part>,
    ) -> wasmtime::Result<Called<Resource<StartedCall>>> {
        let payload = self.table.get(&payload)?.0.clone();
        // A part is handled together with others, and an embedded function cannot wait for them.
        let embedded = match part {
            Some(_) => Ok(None),
            None => self.start_embedded(&target, &payload).await?,
        };
        let started = match embedded {
            Ok(Some(handle)) => Ok(handle),
            Ok(None) => self.with_host(|host| {
                let join = part.map(join).transpose()?;
                host.start_call(&target, payload.outgoing(), join).map_err(refused)
            }),
            Err(error) => Err(error),
        };
        Ok(match started {
            Ok(handle) => Ok(self.table.push(StartedCall(handle))?),
            Err(error) => Err(error),
        })
    }

    fn wait(
        &mut self,
        calls: Vec<Resource<StartedCall>>,
        timeout_ms: Option<u32>,
    ) -> wasmtime::Result<Called<calls::Ended>> {
        let mut handles = Vec::with_capacity(calls.len());
        for call in &calls {
            handles.push(self.table.get(call)?.0);
        }
        let until = timeout_ms.map(|wait| Deadline::after(Duration::from_millis(u64::from(wait))));
        let ended = self.with_host(|host| host.wait_for(&handles, until).map_err(refused));
        let (index, ended) = match ended {
            Ok(ended) => ended,
            Err(error) => return Ok(Err(error)),
        };
        let outcome = self.answered(ended.map_err(call_error))?;
        Ok(Ok(calls::Ended { index: u32::try_from(index).unwrap_or(u32::MAX), outcome }))
    }

    fn emit(
        &mut self,
        target: String,
        payload: Resource<GuestPayload>,
    ) -> wasmtime::Result<Called<()>> {
        let payload = self.table.get(&payload)?.0.clone();
        Ok(self.with_host(|host| {
            let bytes = payload.into_vec();
            let bytes = bytes.map_err(|error| failed(Errno::Internal, &error.to_string()))?;
            host.emit(&target, &bytes).map_err(call_error)
        }))
    }
}

impl calls::HostStartedCall for State {
    fn drop(&mut self, call: Resource<StartedCall>) -> wasmtime::Result<()> {
        let StartedCall(handle) = self.table.delete(call)?;
        // A call that `wait` has reported is gone already.
        let _forgotten = self.host.with(|host| host.forget(handle));
        Ok(())
    }
}

impl context::Host for State {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<String>> {
        Ok(self.host.with(|host| host.text(&key)).flatten())
    }

    fn set(&mut self, key: String, value: String) -> wasmtime::Result<Called<()>> {
        Ok(self.with_host(|host| host.set_metadata(&key, value.as_bytes()).map_err(refused)))
    }

    fn log(&mut self, level: context::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            context::Level::Error => Level::Error,
            context::Level::Warn => Level::Warn,
            context::Level::Info => Level::Info,
            context::Level::Debug => Level::Debug,
            context::Level::Trace => Level::Trace,
        };
        self.host.with(|host| host.log(level, &message));
        Ok(())
    }
}

/// A generated function that runs although [`define`] has replaced it: a fault of ours.
fn replaced(function: &str) -> wasmtime::Error {
    wasmtime::Error::msg(format!("{function} is not the function that copies once"))
}

fn host_failed() -> types::CallError {
    call_error(internal())
}

fn internal() -> CallError {
    CallError::Internal { message: "the host could not serve the call".to_owned() }
}

fn join(part: calls::Part) -> Called<Join> {
    let calls::Part { key, parts, number } = part;
    if key.len() > cwasi_abi::JOIN_KEY_MAX || key.is_empty() || (parts > 0 && number >= parts) {
        return Err(failed(Errno::InvalidArgument, "no such part: its key or number is invalid"));
    }
    Ok(Join { key, parts, part: number, ..Join::default() })
}

fn call_error(error: CallError) -> types::CallError {
    failed(error.errno(), &error.to_string())
}

/// An errno without a message of its own.
fn refused(errno: Errno) -> types::CallError {
    let message = match errno {
        Errno::Timeout => "no call has ended in time",
        Errno::BadHandle => "the call was reported already",
        Errno::TooManyHandles => "too many calls are in flight",
        Errno::NotAvailable => "calls are possible only while a request is handled",
        Errno::PayloadTooLarge => "the values are too long",
        _ => "an argument is invalid",
    };
    failed(errno, message)
}

fn failed(errno: Errno, message: &str) -> types::CallError {
    types::CallError { code: error_code(errno), message: message.to_owned() }
}

const fn error_code(errno: Errno) -> types::ErrorCode {
    use types::ErrorCode as Code;
    match errno {
        Errno::InvalidArgument | Errno::BadHandle => Code::InvalidArgument,
        Errno::NoSuchFunction => Code::NoSuchFunction,
        Errno::Refused => Code::Refused,
        Errno::Timeout => Code::Timeout,
        Errno::Overloaded => Code::Overloaded,
        Errno::Trapped => Code::Trapped,
        Errno::Failed => Code::Failed,
        Errno::PayloadTooLarge => Code::PayloadTooLarge,
        Errno::Unreachable => Code::Unreachable,
        Errno::Broken => Code::Broken,
        Errno::NotAvailable => Code::NotAvailable,
        Errno::TooManyHandles => Code::TooManyCalls,
        // The others are about linear memory.
        Errno::Internal | Errno::Ok | Errno::BadPointer | Errno::BufferTooSmall => Code::Internal,
    }
}
