//! Loads what a component embeds: core modules and components, each for a store of its own. Runs in builder and workers.

use std::rc::Rc;

use cwasi_components::{EmbeddedComponent, EmbeddedFunction, MakeCallee};
use cwasi_vm::engine::VmError;
use cwasi_wasmtime_artifact::Kind;
use cwasi_wire::control::EmbeddedModule as EmbeddedFile;

use super::Wasmtime;
use super::code_file::{CodeFile, component};
use super::embedded_module::EmbeddedModule;
use super::program::Program;

/// Loads `embedded`, each after its own imports.
pub(super) fn load(
    wasmtime: &Wasmtime,
    embedded: &[EmbeddedFile],
) -> Result<Vec<EmbeddedFunction>, VmError> {
    // What is embedded reaches no destinations.
    let inside = Wasmtime { memory_max: wasmtime.memory_max, network: None, log: None };
    let function = |(index, module): (usize, &EmbeddedFile)| {
        let make =
            if module.dispatch { Some(callee(&inside, &embedded[..index], module)?) } else { None };
        Ok(EmbeddedFunction { name: module.name.clone(), make })
    };
    embedded.iter().enumerate().map(function).collect()
}

fn callee(
    wasmtime: &Wasmtime,
    before: &[EmbeddedFile],
    module: &EmbeddedFile,
) -> Result<MakeCallee, VmError> {
    let code = CodeFile::open(&module.artifact)?;
    if code.trailer.kind != Kind::Module {
        let function = Rc::new(component(wasmtime, None, &code)?);
        return Ok(Box::new(move |pool, budget| {
            Box::new(EmbeddedComponent::new(Rc::clone(&function), pool, budget))
        }));
    }
    let mut linked = Vec::new();
    for module in before {
        let code = CodeFile::open(&module.artifact)?;
        if code.trailer.kind == Kind::Module {
            linked.push((&*module.name, code));
        }
    }
    let program = Rc::new(Program::load_callee(wasmtime, code, linked)?);
    program.root().interface.check_reactor(&module.name)?;
    Ok(Box::new(move |pool, budget| {
        Box::new(EmbeddedModule::new(Rc::clone(&program), pool, budget))
    }))
}
