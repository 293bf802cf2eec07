//! What a loaded module imports and exports. Runs in builder and workers.

use cwasi_abi::export;
use cwasi_vm::interface::{Import, MemoryPages, ModuleInterface, Signature};
use cwasi_vm::trampoline::Number;
use wasmtime::{ExternType, FuncType, Module, Mutability, ValType};

/// Imports and exports of a module.
pub(super) fn interface_of(module: &Module) -> ModuleInterface {
    let mut found = ModuleInterface::default();
    for export in module.exports() {
        let name = export.name();
        match export.ty() {
            ExternType::Func(ty) => found.exports.push(signature(name, &ty)),
            ExternType::Memory(ty) if name == export::MEMORY => {
                let pages = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
                let max = ty.maximum().map_or(u32::MAX, pages);
                found.memory = Some(MemoryPages { first: pages(ty.minimum()), max });
            }
            ExternType::Global(ty) => {
                let is_address =
                    matches!(ty.content(), ValType::I32) && ty.mutability() == Mutability::Const;
                found.lends_response |= is_address && name == export::RESPONSE;
                found.has_payload |= is_address && name == export::PAYLOAD;
            }
            _ => {}
        }
    }
    for import in module.imports() {
        let function = import.ty().func().map(|ty| signature(import.name(), ty));
        let (module, name) = (import.module().to_owned(), import.name().to_owned());
        found.imports.push(Import { module, name, function });
    }
    found
}

fn signature(name: &str, ty: &FuncType) -> Signature {
    let number = |ty: ValType| match ty {
        ValType::I32 => Some(Number::I32),
        ValType::I64 => Some(Number::I64),
        ValType::F32 => Some(Number::F32),
        ValType::F64 => Some(Number::F64),
        _ => None,
    };
    Signature {
        name: name.to_owned(),
        params: ty.params().map(number).collect(),
        results: ty.results().map(number).collect(),
    }
}
