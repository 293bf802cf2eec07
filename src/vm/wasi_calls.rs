//! Records whether a guest has called a WASI function that leaves state. Runs in the compiler process. Pure: bytes
//! in, bytes out.
//!
//! WASI keeps descriptors: a guest can open, close or move them. Most modules import such functions and rarely call
//! them; a C library's text formatting imports `fd_close` and `fd_seek`. So each such import gets a wrapper that sets
//! a global of the module ([`CALLED_EXPORT`](cwasi_abi::WASI_CALLED_EXPORT)) and then calls it. While the global is
//! 0, WASI is unchanged (`wasmedge::renewal`).

use std::convert::Infallible;

use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ConstExpr, Function, FunctionSection, GlobalSection, GlobalType, Module,
    SectionId, ValType,
};
use wasmparser::{
    CodeSectionReader, CompositeInnerType, CustomSectionReader, FunctionSectionReader,
    GlobalSectionReader, Parser, Payload, TypeRef,
};

/// Module name of WASI preview 1.
pub const WASI: &str = "wasi_snapshot_preview1";

/// Functions that leave a WASI without open files unchanged: they read its settings, or act on the process's own
/// stdio and clocks. All others may open, close, move or change its descriptors.
const HARMLESS: [&str; 16] = [
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_fdstat_get",
    "fd_filestat_get",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_read",
    "fd_write",
    // The engine empties its list of events before it waits again.
    "poll_oneoff",
    // The exit code is read only after the next `proc_exit`.
    "proc_exit",
    "random_get",
    "sched_yield",
];

/// Functions that act on the descriptor in their first parameter, and for stdio on the process's own descriptors.
/// Their effect on stdio does not depend on the WASI. Go's runtime makes stdio non-blocking when it starts.
const HARMLESS_TO_STDIO: [&str; 3] = ["fd_fdstat_set_flags", "fd_seek", "fd_tell"];
const LAST_OF_STDIO: i32 = 2;

/// True if this function leaves no state in a WASI without open files.
pub fn is_harmless(name: &str) -> bool {
    HARMLESS.contains(&name)
}

/// Returns `wasm`, a valid module, with a global that records calls of WASI functions that leave state, and the
/// global's index. `None` if it imports no such function, or cannot be rewritten.
pub fn note(wasm: &[u8]) -> Option<(Vec<u8>, u32)> {
    let mut noting = TrackedModule::of(wasm)?;
    if noting.noted.is_empty() {
        return None;
    }
    let mut module = Module::new();
    noting.parse_core_module(&mut module, Parser::new(0), wasm).ok()?;
    Some((module.finish(), noting.global))
}

/// A module under reconstruction.
#[derive(Default)]
struct TrackedModule {
    noted: Vec<TrackedImport>,
    /// Number of its functions, imported ones included.
    functions: u32,
    /// Index of the new global.
    global: u32,
    has_globals: bool,
}

/// An import with recorded calls.
#[derive(Clone, Copy)]
struct TrackedImport {
    index: u32,
    ty: u32,
    params: u32,
    /// Calls are recorded only if their first parameter is not a descriptor of stdio.
    spares_stdio: bool,
}

impl TrackedModule {
    fn of(wasm: &[u8]) -> Option<Self> {
        let (mut this, mut params) = (Self::default(), Vec::new());
        for payload in Parser::new(0).parse_all(wasm) {
            match payload.ok()? {
                Payload::TypeSection(section) => {
                    for group in section {
                        for ty in group.ok()?.into_types() {
                            let CompositeInnerType::Func(ty) = ty.composite_type.inner else {
                                return None;
                            };
                            params.push(u32::try_from(ty.params().len()).ok()?);
                        }
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import.ok()?;
                        let TypeRef::Func(ty) = import.ty else { return None };
                        if import.module == WASI && !is_harmless(import.name) {
                            let params = *params.get(usize::try_from(ty).ok()?)?;
                            let spares_stdio =
                                params > 0 && HARMLESS_TO_STDIO.contains(&import.name);
                            let index = this.functions;
                            this.noted.push(TrackedImport { index, ty, params, spares_stdio });
                        }
                        this.functions += 1;
                    }
                }
                Payload::FunctionSection(section) => this.functions += section.count(),
                Payload::GlobalSection(section) => {
                    (this.global, this.has_globals) = (section.count(), true);
                }
                _ => {}
            }
        }
        Some(this)
    }

    fn add_global(globals: &mut GlobalSection) {
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        globals.global(ty, &ConstExpr::i32_const(0));
    }
}

impl Reencode for TrackedModule {
    type Error = Infallible;

    /// Replaces calls of a recorded import by calls of its wrapper.
    fn function_index(&mut self, function: u32) -> Result<u32, Error<Infallible>> {
        let place = self.noted.iter().position(|noted| noted.index == function);
        let place = place.and_then(|place| u32::try_from(place).ok());
        Ok(place.map_or(function, |place| self.functions + place))
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_function_section(self, functions, section)?;
        for TrackedImport { ty, .. } in &self.noted {
            functions.function(*ty);
        }
        Ok(())
    }

    fn parse_global_section(
        &mut self,
        globals: &mut GlobalSection,
        section: GlobalSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_global_section(self, globals, section)?;
        Self::add_global(globals);
        Ok(())
    }

    /// Globals come before exports, which this module has: its memory's.
    fn intersperse_section_hook(
        &mut self,
        module: &mut Module,
        _: Option<SectionId>,
        before: Option<SectionId>,
    ) -> Result<(), Error<Infallible>> {
        if before == Some(SectionId::Export) && !self.has_globals {
            let mut globals = GlobalSection::new();
            Self::add_global(&mut globals);
            module.section(&globals);
        }
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        utils::parse_code_section(self, code, section)?;
        for TrackedImport { index, params, spares_stdio, .. } in &self.noted {
            let mut body = Function::new([]);
            let mut instructions = body.instructions();
            if *spares_stdio {
                instructions.local_get(0).i32_const(LAST_OF_STDIO).i32_gt_u();
                instructions.global_get(self.global).i32_or().global_set(self.global);
            } else {
                instructions.i32_const(1).global_set(self.global);
            }
            for param in 0..*params {
                instructions.local_get(param);
            }
            instructions.call(*index).end();
            code.function(&body);
        }
        Ok(())
    }

    /// Names and debugging information, which native code does not need.
    fn parse_custom_section(
        &mut self,
        _: &mut Module,
        _: CustomSectionReader<'_>,
    ) -> Result<(), Error<Infallible>> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMPORTS: &str = r#"
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_seek" (func $seek (param i32 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))"#;

    fn noted(rest: &str) -> Option<(String, u32)> {
        let wasm = wat::parse_str(format!("(module {IMPORTS} {rest})")).unwrap();
        let (wasm, global) = note(&wasm)?;
        wasmparser::validate(&wasm).unwrap();
        Some((wasmprinter::print_bytes(&wasm).unwrap(), global))
    }

    #[test]
    fn every_way_to_an_import_that_leaves_something_goes_by_the_note() {
        let (text, global) = noted(
            r#"(global $a (mut i32) (i32.const 7)) (table 2 funcref) (elem (i32.const 0) $close $write)
            (memory (export "memory") 1) (export "close" (func $close))
            (func (export "f") (param i32) (result i32)
                (drop (call $write (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
                (drop (call $seek (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 0)))
                (call $close (local.get 0)))"#,
        )
        .unwrap();
        assert_eq!(global, 1);
        // Three imports, one function, and those before fd_seek and fd_close.
        for expected in [
            "call 0\n",
            "call 4\n",
            "call 5\n",
            r#"(export "close" (func 5))"#,
            "func 5 0)",
            "local.get 0\n    i32.const 2\n    i32.gt_u\n    global.get 1\n    i32.or\n    global.set 1\n    local.get 0\n    local.get 1",
            "i32.const 1\n    global.set 1\n    local.get 0\n    call 2",
        ] {
            assert!(text.contains(expected), "{expected} missing in {text}");
        }
        assert_eq!(
            text.matches("call 1\n").count() + text.matches("call 2\n").count(),
            2,
            "{text}"
        );
    }

    #[test]
    fn a_module_without_globals_gets_a_section_for_them() {
        let (text, global) = noted(
            r#"(memory (export "memory") 1) (func $s (drop (call $close (i32.const 5)))) (start $s)"#,
        )
        .unwrap();
        assert_eq!(global, 0);
        assert!(text.contains("(global (;0;) (mut i32) i32.const 0)"), "{text}");
    }

    #[test]
    fn one_that_leaves_nothing_stays_as_it_is() {
        let wasm = wat::parse_str(
            r#"(module (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1))"#,
        );
        assert!(note(&wasm.unwrap()).is_none());
        for name in ["path_open", "fd_close", "fd_renumber", "fd_seek", "sock_accept", "unheard_of"]
        {
            assert!(!is_harmless(name), "{name}");
        }
    }
}
