//! One instance of a component. Runs in a worker.

use std::future::poll_fn;
use std::rc::Rc;

use cwasi_abi::PAYLOAD_MAX;
use cwasi_abi::context_key::HTTP_METHOD;
use cwasi_abi::interfaces::{HANDLE_FUNCTION, RUN_FUNCTION};
use cwasi_host_functions::{Host, lossy_text};
use cwasi_modes::Payload;
use cwasi_modes::pool::SegmentPool;
use cwasi_vm::engine::{CommandEnd, GuestStop, Trap, VmError};
use cwasi_vm::reactor::{HandlerInput, HandlerOutcome, PayloadHandler, failure_message};
use wasmtime::component::{
    Accessor, ComponentExportIndex, ComponentNamedList, ComponentType, Instance, Lift, Lower,
    Resource, ResourceTable,
};
use wasmtime::{Store, Trap as WasmTrap};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::WasiHttpCtx;

use super::callees::Callees;
use super::exports::HttpExport;
use super::lent_host::LentHost;
use super::lists::{self, PassedList, ReturnedList};
use super::memory_limit::MemoryLimit;
use super::output::Tail;
use super::program::ComponentProgram;
use super::resources::GuestPayload;
use super::runtime::{EndedTasks, lend};
use super::state::State;
use super::wasi::WasiSettings;
use super::{http, http_async};

/// Most resources of an instance at a time: files, streams, sockets, payloads, calls. As many tasks, and their streams.
const RESOURCES_MAX: usize = 16 * 1024;
/// Most bytes that one call between host and component copies: a payload, and what goes with it.
const CALL_BYTES_MAX: usize = (1 << 30) + (16 << 20);
const _: () = assert!(CALL_BYTES_MAX as u64 > PAYLOAD_MAX);

/// What a handler returns: a response, or text for the caller.
type Handled<T> = (Result<T, String>,);

/// A part of a group, as `cwasi:function/group-handler` has it.
#[derive(ComponentType, Lower)]
#[component(record)]
struct GroupPart {
    number: u32,
    payload: Resource<GuestPayload>,
}

pub struct ComponentInstance {
    program: Rc<ComponentProgram>,
    store: Store<State>,
    /// Dropped after the store, whose requests end with it.
    _ended_tasks: EndedTasks,
    instance: Instance,
    stderr: Tail,
    /// Requests of HTTP come to it.
    takes_http: bool,
    pool: Option<SegmentPool>,
}

impl std::fmt::Debug for ComponentInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentInstance").field("program", &self.program).finish_non_exhaustive()
    }
}

impl ComponentInstance {
    pub(super) async fn new(
        program: &Rc<ComponentProgram>,
        settings: &WasiSettings,
        (pool, limit): (Option<SegmentPool>, MemoryLimit),
        callees: Callees,
        host: &mut LentHost,
    ) -> Result<Self, VmError> {
        let stderr = Tail::default();
        let (wasi, rules) = settings.context(&stderr)?;
        let requests = settings.requests(rules.as_ref());
        let mut table = ResourceTable::new();
        table.set_max_capacity(RESOURCES_MAX);
        let (host_slot, http) = (LentHost::default(), WasiHttpCtx::new());
        let state = State { host: host_slot, callees, wasi, http, requests, table, limit, rules };
        let mut store = Store::new(&program.engine, state);
        store.set_hostcall_fuel(CALL_BYTES_MAX);
        if let Some(tasks) = store.concurrent_resource_table() {
            tasks.set_max_capacity(RESOURCES_MAX);
        }
        if store.data().limit.budget().is_bounded() {
            store.limiter(|state| &mut state.limit);
        }
        store.data_mut().host = std::mem::take(host);
        let made = program.instance.instantiate_async(&mut store).await;
        *host = std::mem::take(&mut store.data_mut().host);
        let instance = made.map_err(|error| VmError::Instantiate { reason: reason(&error) })?;
        let program = Rc::clone(program);
        let (takes_http, _ended_tasks) = (true, EndedTasks);
        Ok(Self { program, store, _ended_tasks, instance, stderr, takes_http, pool })
    }

    /// One that is only called by name: it is embedded, so its context is its caller's.
    #[must_use]
    pub fn without_http(self) -> Self {
        Self { takes_http: false, ..self }
    }

    /// Calls an entry.
    async fn call<Params, Return>(
        &mut self,
        (entry, name): (&ComponentExportIndex, &str),
        params: Params,
        host: &mut LentHost,
    ) -> Result<Return, GuestStop>
    where
        Params: ComponentNamedList + Lower,
        Return: ComponentNamedList + Lift + Send + Sync + 'static,
    {
        let instance = self.instance;
        self.run(name, host, async |store| {
            let function = instance.get_typed_func::<Params, Return>(&mut *store, entry)?;
            function.call_async(&mut *store, params).await
        })
        .await
    }

    /// Runs the component to the end of one call.
    async fn run<T>(
        &mut self,
        name: &str,
        host: &mut LentHost,
        call: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> Result<T, GuestStop> {
        let Self { store, pool, .. } = self;
        // An embedded function that this call calls has the same pool.
        lists::use_pool(pool.clone());
        store.data_mut().host = std::mem::take(host);
        let ended = call(&mut *store).await;
        *host = std::mem::take(&mut store.data_mut().host);
        let trapped = |reason: String| GuestStop::Trapped(Trap { export: name.to_owned(), reason });
        ended.map_err(|error| match error.downcast_ref::<I32Exit>() {
            Some(exit) => GuestStop::Exited(exit.0.cast_unsigned()),
            None => trapped(reason(&error)),
        })
    }

    fn push(&mut self, payload: &Payload) -> Result<Resource<GuestPayload>, GuestStop> {
        let pushed = self.store.data_mut().table.push(GuestPayload(payload.clone()));
        pushed.map_err(|error| unusable(&error.to_string()))
    }

    /// The payload behind a handle that the component returned.
    fn taken(
        &mut self,
        ended: Result<Resource<GuestPayload>, String>,
    ) -> Result<Result<Payload, NoResponse>, GuestStop> {
        let handle = match ended {
            Ok(handle) => handle,
            Err(text) => return Ok(Err(NoResponse::Failed(text))),
        };
        let taken = self.store.data_mut().table.delete(handle);
        let GuestPayload(payload) = taken.map_err(|error| unusable(&error.to_string()))?;
        Ok(Ok(payload))
    }

    async fn handle_whole(
        &mut self,
        payload: &Payload,
        host: &mut LentHost,
    ) -> Result<Result<Payload, NoResponse>, GuestStop> {
        let program = Rc::clone(&self.program);
        let exports = &program.exports;
        let mut method = || host.with(|host| host.text(HTTP_METHOD)).flatten();
        let came_by_http = exports.http.is_some() && method().is_some_and(|it| !it.is_empty());
        let is_only_http = exports.handler.is_none() && exports.payload_handler.is_none();
        if let Some(entry) = &exports.http
            && self.takes_http
            && (came_by_http || is_only_http)
        {
            return self.handle_http(entry, payload, host).await;
        }
        if let Some(entry) = &exports.payload_handler {
            let params = (self.push(payload)?,);
            let (ended,) = self
                .call::<_, Handled<Resource<GuestPayload>>>((entry, HANDLE_FUNCTION), params, host)
                .await?;
            return self.taken(ended);
        }
        let entry = exports.handler.as_ref();
        let entry = entry.ok_or_else(|| unusable("the component handles groups only"))?;
        let params = (PassedList::of(payload),);
        let (ended,) =
            self.call::<_, Handled<ReturnedList>>((entry, HANDLE_FUNCTION), params, host).await?;
        Ok(ended.map(|ReturnedList(response)| response).map_err(NoResponse::Failed))
    }

    async fn handle_http(
        &mut self,
        entry: &HttpExport,
        payload: &Payload,
        host: &mut LentHost,
    ) -> Result<Result<Payload, NoResponse>, GuestStop> {
        let body = payload.clone().into_vec().map_err(|error| unusable(&error.to_string()))?;
        let no_host = || unusable("the host is gone");
        let request = match host.with(|host| http::request(host, body)).ok_or_else(no_host)? {
            Ok(request) => request,
            Err(error) => {
                let text = format!("the request's head is invalid: {error}");
                return Ok(Err(NoResponse::Failed(text)));
            }
        };
        let instance = self.instance;
        let answer = self
            .run(HANDLE_FUNCTION, host, async |store| match entry {
                HttpExport::Incoming(entry) => http::handle(store, instance, entry, request).await,
                HttpExport::Handler(entry) => {
                    http_async::handle(store, instance, entry, request).await
                }
            })
            .await?;
        match answer {
            Ok(response) => {
                let body = host.with(|host| http::answered(host, response)).ok_or_else(no_host)?;
                Ok(body.map(Payload::Inline).map_err(NoResponse::Undeliverable))
            }
            Err(text) => Ok(Err(NoResponse::Failed(text))),
        }
    }

    async fn handle_parts(
        &mut self,
        expected: u32,
        parts: &[(u32, &Payload)],
        host: &mut LentHost,
    ) -> Result<Result<Payload, NoResponse>, GuestStop> {
        let program = Rc::clone(&self.program);
        let Some(entry) = &program.exports.group_handler else {
            let text = "the component has no `cwasi:function/group-handler` for a group";
            return Ok(Err(NoResponse::Failed(text.to_owned())));
        };
        let part = |(number, payload): &(u32, &Payload)| {
            Ok(GroupPart { number: *number, payload: self.push(payload)? })
        };
        let parts = parts.iter().map(part).collect::<Result<Vec<_>, GuestStop>>()?;
        let params = (expected, parts);
        let (ended,) = self
            .call::<_, Handled<Resource<GuestPayload>>>((entry, HANDLE_FUNCTION), params, host)
            .await?;
        self.taken(ended)
    }

    /// Runs `wasi:cli/run`.
    pub fn run_command(&mut self, host: &mut Host) -> CommandEnd {
        let program = Rc::clone(&self.program);
        let Some(entry) = &program.exports.run else {
            let reason = "no such export".to_owned();
            return CommandEnd::Trapped(Trap { export: RUN_FUNCTION.to_owned(), reason });
        };
        let ended = lend(host, async |host| {
            let params = (entry, RUN_FUNCTION);
            let returned = self.call::<_, (Result<(), ()>,)>(params, (), host).await?;
            self.end_tasks(host).await.map(|()| returned)
        });
        match ended {
            Ok(Ok((Ok(()),))) => CommandEnd::Exited(0),
            Ok(Ok((Err(()),))) => CommandEnd::Exited(1),
            Ok(Err(GuestStop::Exited(code))) => CommandEnd::Exited(code),
            Ok(Err(GuestStop::Trapped(trap))) => CommandEnd::Trapped(trap),
            Err(error) => {
                let (export, reason) = (RUN_FUNCTION.to_owned(), error.to_string());
                CommandEnd::Trapped(Trap { export, reason })
            }
        }
    }

    /// Runs its handler while another component runs, or none.
    pub(super) async fn run_handler(
        &mut self,
        input: HandlerInput<'_>,
        host: &mut LentHost,
    ) -> HandlerOutcome<'static> {
        let handled = match input {
            HandlerInput::Whole(payload) => self.handle_whole(payload, host).await,
            HandlerInput::Parts { expected, parts } => {
                self.handle_parts(expected, parts, host).await
            }
        };
        match handled {
            Ok(Ok(response)) => HandlerOutcome::Returned(response),
            Ok(Err(NoResponse::Failed(text))) => {
                HandlerOutcome::Failed(failure_message(text.as_bytes()))
            }
            Ok(Err(NoResponse::Undeliverable(text))) => HandlerOutcome::Undeliverable(text),
            Err(GuestStop::Exited(code)) => HandlerOutcome::Exited(code),
            Err(GuestStop::Trapped(trap)) => HandlerOutcome::Trapped(trap),
        }
    }

    /// True if an embedded function of it has little memory left.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.store.data().callees.is_nearly_full()
    }

    /// Waits for the tasks that a command has left when it returned.
    async fn end_tasks(&mut self, host: &mut LentHost) -> Result<(), GuestStop> {
        if !self.program.is_async {
            return Ok(());
        }
        self.run(RUN_FUNCTION, host, async |store| {
            let ended = async |accessor: &Accessor<State>| {
                poll_fn(|context| accessor.poll_no_interesting_tasks(context)).await;
            };
            store.run_concurrent(ended).await
        })
        .await
    }

    /// Begins to keep the end of stderr.
    pub fn keep_stderr(&self) {
        self.stderr.keep();
    }

    /// Ends [`Self::keep_stderr`]; returns what was kept.
    pub fn stderr_tail(&self) -> Vec<u8> {
        self.stderr.take()
    }
}

impl PayloadHandler for ComponentInstance {
    fn handle(&mut self, input: HandlerInput<'_>, host: &mut Host) -> HandlerOutcome<'static> {
        let ended = lend(host, async |host| self.run_handler(input, host).await);
        ended.unwrap_or_else(|error| {
            let (export, reason) = (HANDLE_FUNCTION.to_owned(), error.to_string());
            HandlerOutcome::Trapped(Trap { export, reason })
        })
    }
}

/// Why a handler that returned has no response.
enum NoResponse {
    /// Its own error.
    Failed(String),
    /// The head of its HTTP response cannot be delivered.
    Undeliverable(String),
}

fn unusable(reason: &str) -> GuestStop {
    GuestStop::Trapped(Trap { export: HANDLE_FUNCTION.to_owned(), reason: reason.to_owned() })
}

/// Longest reason in bytes.
const REASON_MAX: usize = 4096;

/// The reason in the words of the WebAssembly specification's tests.
fn reason(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<WasmTrap>() {
        Some(WasmTrap::UnreachableCodeReached) => "unreachable".to_owned(),
        Some(trap) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
        None => lossy_text(error.root_cause().to_string().as_bytes(), REASON_MAX),
    }
}
