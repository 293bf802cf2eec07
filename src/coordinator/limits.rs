//! Static limits of a module, checked before the compiler runs. Runs in the shim daemon.
//!
//! The compiler's memory and time grow with functions, types and local variables, not with bytes: 1.7 kB that declare
//! ten million locals took 2.9 GB. The limits of the compiler's process bound the rest.

use wasmparser::{BinaryReaderError, FunctionBody, Parser, Payload};

use cwasi_config::CompileConfig;
use cwasi_config::node::config_file;

/// A module exceeds a static limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it has {what} {value}, above this node's limit of {limit}; if that is intended, raise `{key}` under [compile] in the node's configuration ({file})",
    file = config_file().display()
)]
pub struct LimitExceeded {
    what: &'static str,
    value: u64,
    limit: u64,
    key: &'static str,
}

/// The counted sizes of a module.
#[derive(Debug, Default, PartialEq, Eq)]
struct ModuleSize {
    functions: u64,
    types: u64,
    locals: u64,
    largest_function: u64,
}

/// Checks a valid module against `limits`.
///
/// # Errors
/// The first exceeded limit.
pub fn check(wasm: &[u8], limits: &CompileConfig) -> Result<(), LimitExceeded> {
    // An unreadable module is invalid, and the compiler refuses it.
    let size = ModuleSize::read(wasm).unwrap_or_default();
    let table = [
        ("functions:", size.functions, limits.functions, "functions"),
        ("types:", size.types, limits.types, "types"),
        ("local variables in all its functions:", size.locals, limits.locals, "locals"),
        ("a function of bytes:", size.largest_function, limits.function_size, "function_size"),
    ];
    match table.into_iter().find(|(_, value, limit, _)| value > limit) {
        Some((what, value, limit, key)) => Err(LimitExceeded { what, value, limit, key }),
        None => Ok(()),
    }
}

impl ModuleSize {
    fn read(wasm: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut size = Self::default();
        for payload in Parser::new(0).parse_all(wasm) {
            match payload? {
                Payload::TypeSection(section) => size.types += u64::from(section.count()),
                Payload::ComponentTypeSection(section) => {
                    size.types += u64::from(section.count());
                }
                Payload::FunctionSection(section) => size.functions += u64::from(section.count()),
                Payload::CodeSectionEntry(body) => size.body(&body)?,
                _ => {}
            }
        }
        Ok(size)
    }

    fn body(&mut self, body: &FunctionBody<'_>) -> Result<(), BinaryReaderError> {
        let length = u64::try_from(body.range().len()).unwrap_or(u64::MAX);
        self.largest_function = self.largest_function.max(length);
        for group in body.get_locals_reader()? {
            self.locals += u64::from(group?.0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{CodeSection, Function, FunctionSection, Module, TypeSection, ValType};

    use super::*;

    fn module(functions: u32, locals: u32) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let (mut declared, mut code) = (FunctionSection::new(), CodeSection::new());
        for _ in 0..functions {
            declared.function(0);
            let mut body = Function::new([(locals, ValType::I64)]);
            body.instructions().end();
            code.function(&body);
        }
        let mut module = Module::new();
        module.section(&types).section(&declared).section(&code);
        module.finish()
    }

    #[test]
    fn too_many_locals_are_refused() {
        let bomb = module(200, 50_000);
        assert!(bomb.len() < 2_000, "{}", bomb.len());
        let mut limits = CompileConfig::default();
        let error = check(&bomb, &limits).unwrap_err().to_string();
        let file = config_file().display().to_string();
        for part in ["10000000", "1000000", "`locals`", "[compile]", &file] {
            assert!(error.contains(part), "{part} missing in: {error}");
        }
        limits.locals = 10_000_000;
        assert_eq!(check(&bomb, &limits), Ok(()));
    }

    #[test]
    fn each_limit_counts_what_it_names() {
        let bytes = module(3, 5);
        let size = ModuleSize { functions: 3, types: 1, locals: 15, largest_function: 4 };
        assert_eq!(ModuleSize::read(&bytes).unwrap(), size);
        let all = CompileConfig {
            functions: 3,
            types: 1,
            locals: 15,
            function_size: 4,
            ..CompileConfig::default()
        };
        assert_eq!(check(&bytes, &all), Ok(()));
        let less = |key: &str| match key {
            "functions" => CompileConfig { functions: 2, ..all.clone() },
            "types" => CompileConfig { types: 0, ..all.clone() },
            "locals" => CompileConfig { locals: 14, ..all.clone() },
            _ => CompileConfig { function_size: 3, ..all.clone() },
        };
        for key in ["functions", "types", "locals", "function_size"] {
            assert_eq!(check(&bytes, &less(key)).unwrap_err().key, key);
        }
    }
}
