//! A container that waits for its code. Runs in the shim daemon.

use oci_spec::runtime::Spec;

use crate::bundle::{args, function_name};
use crate::compiled::LaunchCode;
use crate::error::PlanError;
use crate::locate::{LocatedModule, ModulePlace};
use cwasi_config::annotations::FunctionSpec;
use cwasi_config::{Engine, Workers};
use cwasi_wire::control::{Entry, Role, Workload};
use cwasi_wire::ids::Identity;

use super::{Plan, PlanRequest, launch, record};

/// Where delivered code comes from, for messages.
const ORIGIN: &str = "the code of /init";

/// Delivered code as the module of a container, whose command is not run.
pub(super) fn located(spec: &Spec, bytes: Vec<u8>) -> Result<LocatedModule, PlanError> {
    let command = args(spec).first().cloned().ok_or(PlanError::NoCommand)?;
    let (origin, place) = (ORIGIN.to_owned(), ModulePlace::Delivered);
    Ok(LocatedModule { bytes, origin, command, export: None, place })
}

/// The plan of a container without a module, which waits for it.
pub(super) fn plan(
    request: &PlanRequest<'_>,
    spec: &Spec,
    (mut annotations, workers): (FunctionSpec, Workers),
    engine: Engine,
) -> Result<Plan, PlanError> {
    if request.delivery.is_some() {
        return Err(PlanError::NoCode);
    }
    let command = args(spec).first().ok_or(PlanError::NoCommand)?;
    let identity = Identity {
        namespace: request.namespace.to_owned(),
        pod_namespace: annotations.pod_namespace.clone(),
        function: function_name(&annotations, command)?,
    };
    let shares_role = annotations.shares_role.take();
    let is_called = annotations.role == Role::Secondary;
    let record = is_called.then(|| record(request, &annotations, workers, &identity));
    let code = LaunchCode::default();
    let launch = launch(request, spec, (annotations, workers), identity, Entry::Reactor, code);
    Ok(Plan {
        workload: Workload::Function(Box::new(launch)),
        record,
        note: "waits for its code".to_owned(),
        code: None,
        engine: Some(engine),
        shares_role,
        in_use: Vec::new(),
    })
}
