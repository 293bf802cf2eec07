//! Functions of the paper's prototype (`cwasi.compat=2023`). Runs in the shim daemon.

use cwasi_abi::prototype::IMPORT_MODULE;
use cwasi_config::Engine;

use crate::error::PlanError;
use crate::module::CheckedModule;

/// Lets a module import the prototype's host function, which no other module has to provide.
///
/// # Errors
/// When its engine does not serve that.
pub(super) fn check(
    module: &mut CheckedModule,
    engine: Engine,
    origin: &str,
) -> Result<(), PlanError> {
    if module.is_component || engine != Engine::Wasmtime {
        return Err(PlanError::Prototype { origin: origin.to_owned() });
    }
    module.foreign.remove(IMPORT_MODULE);
    Ok(())
}
