//! Functions of the paper's prototype (`cwasi.compat=2023`). Runs in the shim daemon.

use cwasi_config::Engine;

use crate::error::PlanError;
use crate::module::CheckedModule;

/// Checks that a function gets the prototype's ABI only if it asks for it, and only in an engine that has it.
///
/// # Errors
/// What the user has to change.
pub(super) fn check(
    module: &CheckedModule,
    is_prototype: bool,
    engine: Engine,
    origin: &str,
) -> Result<(), PlanError> {
    let origin = || origin.to_owned();
    if !is_prototype {
        let asks = module.imports_prototype;
        return if asks { Err(PlanError::NoCompat { origin: origin() }) } else { Ok(()) };
    }
    if module.is_component || engine != Engine::Wasmtime {
        return Err(PlanError::Compat { origin: origin() });
    }
    Ok(())
}
