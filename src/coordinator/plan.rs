//! Plans a container: finds, checks and compiles its module, and says what to provision. Runs in
//! the shim daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use oci_spec::runtime::Spec;

use super::aot::{AotCache, CompileChild, EntryInUse};
use super::bundle::{self, function_name, function_spec};
use super::compiled::{Compilation, LaunchCode};
use super::component;
use super::delivered::{self, Delivery};
use super::embedding::{NodeSettings, discover};
use super::error::PlanError;
use super::images::ImageStore;
use super::locate::{LocatedModule, ModulePlace, find_module};
use super::module::{self, CheckedModule, ModuleError};
use super::mount_points;
use super::offers::CodeSource;
use super::precompiled::TrustedKeys;
use super::progress::Progress;
use super::registry::Record;
use super::triggers::TriggerPolicy;
use cwasi_config::annotations::{FunctionSpec, Protocol};
use cwasi_config::http::MAX_HEAD_DEFAULT;
use cwasi_config::{Engine, HttpConfig, Workers};
use cwasi_wire::control::{Entry, FunctionLaunch, Isolation, Role, Workload};
use cwasi_wire::ids::Identity;
use cwasi_wire::trace::{SampleRatio, TraceStart};

mod awaited;
mod entry;
mod prototype;

use entry::{doubt, entry};

/// A container's facts before it is planned.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Of its bundle.
    pub spec: &'a Spec,
    /// Its mounted root file system.
    pub rootfs: &'a Path,
    pub namespace: &'a str,
    pub container: &'a str,
    /// Id of the shim's group.
    pub group: &'a str,
    /// Id for this instance, unique on this host.
    pub instance: &'a str,
    /// Path of its receiver.
    pub socket: &'a Path,
    /// What has come since its start; `None` before it.
    pub delivery: Option<&'a Delivery>,
}

/// The plan of a container.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload to run.
    pub workload: Workload,
    /// The registry record of a secondary.
    pub record: Option<Record>,
    /// For the log: compiled or loaded, and the duration.
    pub note: String,
    /// The native code; `None` for a native container.
    pub code: Option<PlannedCode>,
    /// The function's engine; `None` for a native container.
    pub engine: Option<Engine>,
    /// Name of the container in its pod, when an annotation for all containers of the pod makes it a secondary.
    pub shares_role: Option<String>,
    /// Keeps the native code in the cache, until the sandbox has loaded it.
    pub in_use: Vec<Arc<EntryInUse>>,
}

/// Where the native code came from, and how long that took.
#[derive(Clone, Copy, Debug)]
pub struct PlannedCode {
    /// True if a module was compiled; false if the cache had all.
    pub compiled: bool,
    /// From the first search of the cache, waits for other compilers included.
    pub took: Duration,
}

/// Most bytes that all workers of a function keep for leased segments.
const POOL_MAX: u64 = 256 << 20;
/// Divisor of the container's memory limit: the other bound of these bytes.
const POOL_SHARE: u64 = 4;

/// What a library's container runs: `(module (func (export "_start")))`.
const EMPTY_COMMAND: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x0a\x01\x06_start\0\0\x0a\x04\x01\x02\0\x0b";

/// The function coordinator of one shim daemon.
#[derive(Clone, Debug)]
pub struct Coordinator<S, C> {
    pub cache: AotCache,
    pub images: S,
    pub compiler: C,
    /// Engine of core modules without `cwasi.engine`.
    pub engine: Engine,
    /// Trust groups that may span scopes.
    pub trust_groups: Vec<String>,
    /// Most workers of functions without `cwasi.concurrency`.
    pub workers_max: u32,
    pub triggers: TriggerPolicy,
    /// Heads and idle connections of functions without annotations about them.
    pub http: HttpConfig,
    /// Share of the traces that functions without `cwasi.trace` begin recorded.
    pub sample: SampleRatio,
}

impl<S: ImageStore, C: CompileChild> Coordinator<S, C> {
    /// Plans one container. Takes long when the module has to be compiled. Writes only to the cache. Dropping the
    /// future ends the compiler.
    ///
    /// # Errors
    /// The fault, with what the user has to change.
    pub async fn plan(
        &self,
        request: &PlanRequest<'_>,
        progress: &impl Progress,
    ) -> Result<Plan, PlanError> {
        let spec = request.spec;
        let mut annotations = self.annotations(spec)?;
        let found = self.find(request, spec).await?;
        if found.is_none() && annotations.protocol == Protocol::Http {
            return native(spec, &annotations);
        }
        mount_points::check(spec, request.rootfs)?;
        let Some(mut found) = found else {
            return self.awaited(request, spec, annotations);
        };
        let keys = self.cache.trusted_keys();
        let is_known = |digest: &str| self.cache.has(digest, &keys);
        let module = module_to_run(&mut found, annotations.is_library, is_known)?;
        let engine = component::engine_of(&module, annotations.engine, self.engine, &found.origin)?;
        prototype::check(&module, annotations.is_prototype, engine, &found.origin)
            .map_err(|error| not_passed_on(error, &annotations))?;
        self.compiler.check_engine(engine).map_err(PlanError::Engine)?;
        if module.dropped_native {
            tracing::warn!(container = request.container, origin = %found.origin,
                "native code in the module's custom section `wasmedge` was dropped");
        }
        annotations.doubts.iter().for_each(|doubt| progress.warn(doubt));
        let named = found.export.as_deref();
        let entry =
            entry(&module, (annotations.role, annotations.is_prototype), named, &found.origin)
                .map_err(|error| not_passed_on(error, &annotations))?;
        if found.export.is_none()
            && let Some(doubt) = doubt(&module, annotations.role, &found)
        {
            progress.warn(&doubt);
        }
        check_entry(&entry, &annotations, &found.origin)?;
        if annotations.network.is_empty() && !module.sockets.is_empty() {
            let imports = module.sockets.join(", ");
            let error = PlanError::Sockets { origin: found.origin, imports };
            return Err(not_passed_on(error, &annotations));
        }
        let name = function_name(&annotations, &found.command)?;
        let identity = Identity {
            namespace: request.namespace.to_owned(),
            pod_namespace: annotations.pod_namespace.clone(),
            function: name,
        };
        self.triggers.check(&identity, &annotations.triggers)?;
        let node = NodeSettings { spanning: &self.trust_groups, engine: self.engine };
        let container = request.container;
        let embedding =
            discover(&self.images, &module, &annotations, &identity, container, node).await?;
        for (function, reason) in &embedding.refused {
            tracing::warn!(container, function, reason, "not embedded; calls take another mode");
        }
        let began = Instant::now();
        let tenant = format!("{}/{}", identity.namespace, identity.pod_namespace);
        let compilation = self.compilation((engine, &keys), &tenant, progress);
        let source = code_source(request, &found.place, annotations.is_library);
        let mut compiled = compilation.function(module, &found.origin, source, embedding).await?;
        let note = compiled.note.clone();
        let in_use = std::mem::take(&mut compiled.in_use);
        let code = Some(PlannedCode { compiled: compiled.was_compiled, took: began.elapsed() });
        let workers = Workers::of(&annotations, self.workers_max);
        let record = (annotations.role == Role::Secondary)
            .then(|| record(request, &annotations, workers, &identity));
        self.begin_traces(&mut annotations);
        let shares_role = annotations.shares_role.take().filter(|_| record.is_some());
        let launch =
            launch(request, spec, (annotations, workers), identity, entry, compiled.into());
        let workload = Workload::Function(Box::new(launch));
        Ok(Plan { workload, record, note, code, engine: Some(engine), shares_role, in_use })
    }

    /// How modules get their code, for an engine and with these keys.
    fn compilation<'a, P>(
        &'a self,
        (engine, keys): (Engine, &'a TrustedKeys),
        tenant: &'a str,
        progress: &'a P,
    ) -> Compilation<'a, S, C, P> {
        let Self { cache, images, compiler, .. } = self;
        Compilation { cache, images, compiler, keys, progress, tenant, engine }
    }

    /// The annotations of a container, and the node's settings where they say nothing.
    fn annotations(&self, spec: &Spec) -> Result<FunctionSpec, PlanError> {
        let mut annotations = function_spec(spec)?;
        annotations.http.max_head.get_or_insert(self.http.max_head());
        annotations.http.idle_timeout.get_or_insert(self.http.idle_timeout());
        Ok(annotations)
    }

    /// The plan of a container without a module, which waits for it.
    fn awaited(
        &self,
        request: &PlanRequest<'_>,
        spec: &Spec,
        mut annotations: FunctionSpec,
    ) -> Result<Plan, PlanError> {
        let engine = annotations.engine.unwrap_or(self.engine);
        self.compiler.check_engine(engine).map_err(PlanError::Engine)?;
        self.begin_traces(&mut annotations);
        let workers = Workers::of(&annotations, self.workers_max);
        let plan = awaited::plan(request, spec, (annotations, workers), engine)?;
        if let Some(record) = &plan.record {
            self.triggers.check(&record.identity, &record.triggers)?;
        }
        Ok(plan)
    }

    /// The module that has come since the start, or that of the container; `None` for a native container.
    async fn find(
        &self,
        request: &PlanRequest<'_>,
        spec: &Spec,
    ) -> Result<Option<LocatedModule>, PlanError> {
        let delivery = request.delivery;
        let found = match delivery.and_then(|delivery| delivery.module.clone()) {
            Some(bytes) => Some(awaited::located(spec, bytes)?),
            None => find_module(&self.images, spec, request.rootfs, request.container).await?,
        };
        let export = delivery.and_then(|delivery| delivery.export.clone());
        Ok(found.map(|found| LocatedModule { export: export.or(found.export.clone()), ..found }))
    }

    /// When its traces begin, unless an annotation says it.
    fn begin_traces(&self, annotations: &mut FunctionSpec) {
        let unsaid = TraceStart { sample: self.sample, ..TraceStart::UNSAMPLED };
        annotations.trace.get_or_insert(unsaid);
    }
}

/// Where precompiled code of a container's module may be. What a library's container runs has none.
fn code_source<'a>(
    request: &PlanRequest<'a>,
    place: &'a ModulePlace,
    is_library: bool,
) -> CodeSource<'a> {
    let &PlanRequest { rootfs, container: id, delivery, .. } = request;
    match place {
        _ if is_library => CodeSource::Archive(None),
        ModulePlace::Delivered => {
            CodeSource::Archive(delivery.and_then(|delivery| delivery.archive.as_deref()))
        }
        ModulePlace::File(path) => CodeSource::Container { rootfs, module: Some(path), id },
        ModulePlace::Layer => CodeSource::Container { rootfs, module: None, id },
    }
}

/// Checks what only a reactor can have.
fn check_entry(entry: &Entry, annotations: &FunctionSpec, origin: &str) -> Result<(), PlanError> {
    if *entry == Entry::Reactor {
        return Ok(());
    }
    let (origin, isolation) = (origin.to_owned(), annotations.isolation);
    if isolation != Isolation::Request {
        return Err(PlanError::Isolation { origin, isolation });
    }
    if annotations.fan_in.is_some() { Err(PlanError::FanIn { origin }) } else { Ok(()) }
}

/// The checked module that a container runs. A library's container is there so that the node has its image: it runs
/// nothing of it.
fn module_to_run(
    found: &mut LocatedModule,
    is_library: bool,
    is_known: impl FnOnce(&str) -> bool,
) -> Result<CheckedModule, ModuleError> {
    let module = module::check_unless(is_known, &found.bytes, &found.origin)?;
    if !is_library {
        return Ok(module);
    }
    found.export = None;
    module::check(EMPTY_COMMAND, &found.origin)
}

fn native(spec: &Spec, annotations: &FunctionSpec) -> Result<Plan, PlanError> {
    // Pod annotations reach every container of the pod, native sidecars too.
    if !annotations.given.is_empty() && annotations.pod.is_empty() {
        return Err(PlanError::NotAFunction {
            command: bundle::args(spec).first().cloned().unwrap_or_default(),
            keys: annotations.given.join(", "),
        });
    }
    let note = "native".to_owned();
    Ok(Plan {
        workload: Workload::Native,
        record: None,
        note,
        code: None,
        engine: None,
        shares_role: None,
        in_use: Vec::new(),
    })
}

/// What an annotation would mend, in a pod of which none came.
fn not_passed_on(error: PlanError, annotations: &FunctionSpec) -> PlanError {
    if annotations.pod.is_empty() || annotations.has_any {
        return error;
    }
    PlanError::NotPassedOn { source: Box::new(error) }
}

/// The group whose instances serve each other first; empty for a container alone in its shim.
fn group(request: &PlanRequest<'_>, annotations: &FunctionSpec) -> String {
    let alone = annotations.pod.is_empty() && annotations.workflow.is_empty();
    if alone { String::new() } else { request.group.to_owned() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn record(
    request: &PlanRequest<'_>,
    annotations: &FunctionSpec,
    workers: Workers,
    identity: &Identity,
) -> Record {
    Record {
        identity: identity.clone(),
        instance: request.instance.to_owned(),
        group: group(request, annotations),
        workflow: annotations.workflow.clone(),
        trust: annotations.trust.clone(),
        allow: annotations.allow.clone(),
        socket: request.socket.to_owned(),
        max_payload: annotations.max_payload,
        max_head: annotations.http.max_head.unwrap_or(MAX_HEAD_DEFAULT),
        container: request.container.to_owned(),
        http: annotations.http.gateway,
        http_port: annotations.http.port,
        http_idle_ms: annotations.http.idle_timeout.map_or(0, milliseconds),
        timeout_ms: annotations.timeout.map(milliseconds),
        triggers: annotations.triggers.clone(),
        workers: Some(workers),
        link: String::new(),
    }
}

fn launch(
    request: &PlanRequest<'_>,
    spec: &Spec,
    (annotations, workers): (FunctionSpec, Workers),
    identity: Identity,
    entry: Entry,
    code: LaunchCode,
) -> FunctionLaunch {
    let pool_max = pool_max(spec, &annotations, workers);
    let env = spec.process().as_ref().and_then(|process| process.env().clone()).unwrap_or_default();
    let more = request.delivery.map_or(&[][..], |delivery| &delivery.env);
    let awaits_code = annotations.protocol == Protocol::Openwhisk && request.delivery.is_none();
    FunctionLaunch {
        identity,
        group: group(request, &annotations),
        workflow: annotations.workflow,
        trust: annotations.trust,
        instance: request.instance.to_owned(),
        role: annotations.role,
        mode: annotations.mode,
        artifact: code.artifact,
        module_digest: code.digest,
        entry,
        isolation: annotations.isolation,
        embedded: code.embedded,
        not_embedded: code.not_embedded,
        // The shim knows where the output goes.
        log_has_times: false,
        args: bundle::args(spec).to_vec(),
        env: delivered::environment(env, more),
        preopens: bundle::preopens(spec),
        // Whether code that comes later opens files is not known when the container is built.
        files: (awaits_code || code.opens_files).then(|| bundle::files(spec)),
        awaits_code,
        concurrency: workers.least,
        workers_max: workers.most,
        cpu_milli: bundle::cpu_milli(spec),
        queue: annotations.queue,
        timeout_ms: annotations.timeout.map(milliseconds),
        max_payload: annotations.max_payload,
        max_head: annotations.http.max_head.unwrap_or(MAX_HEAD_DEFAULT),
        pool_max,
        memory_max: annotations.memory,
        container_memory: bundle::memory_limit(spec),
        max_requests: annotations.max_requests,
        idle_ms: annotations.idle.map(milliseconds),
        fan_in: annotations.fan_in,
        egress: bundle::egress(spec, annotations.network),
        trace: annotations.trace.unwrap_or(TraceStart::UNSAMPLED),
    }
}

/// Most bytes that each worker keeps for leased segments; 0 in a function without a group.
fn pool_max(spec: &Spec, annotations: &FunctionSpec, workers: Workers) -> u64 {
    if annotations.workflow.is_empty() && annotations.trust.is_empty() {
        return 0;
    }
    let share = bundle::memory_limit(spec).map_or(u64::MAX, |limit| limit / POOL_SHARE);
    share.min(POOL_MAX) / u64::from(workers.least.max(1))
}

#[cfg(test)]
mod signed_tests;
#[cfg(test)]
mod tests;
