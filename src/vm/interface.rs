//! What a module imports and exports, and whether this host can serve it. Runs in builder and workers.

use std::fmt;

use cwasi_abi::{IMPORT_MODULE, export, import, prototype};
use cwasi_wire::control::Entry;
use cwasi_wire::egress::{SOCKET_EXTENSIONS, SOCKET_FUNCTIONS, is_socket_function};

use crate::engine::VmError;
use crate::trampoline::{self, LinkedFunction, Number};
use crate::wasi_calls::WASI;

/// Bytes of one Wasm page.
pub const PAGE_LEN: u64 = 64 * 1024;
/// Most pages of a linear memory: 4 GiB.
pub const PAGES_MAX: u64 = 65_536;

/// Parameters of `cwasi_alloc`.
const ALLOC_PARAMS: u32 = 2;
/// Parameters of `cwasi_handle`.
const HANDLE_PARAMS: u32 = 3;
/// Parameters of `cwasi_free`.
const FREE_PARAMS: u32 = 3;
/// A memory is nearly full when less than this fraction of its maximum is left.
const PART_LEFT: u32 = 8;

/// A function's name and type; `None` stands for a type that is no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub params: Vec<Option<Number>>,
    pub results: Vec<Option<Number>>,
}

impl Signature {
    /// True when it has this name and only `i32`s.
    #[must_use]
    pub fn is(&self, name: &str, params: u32, results: u32) -> bool {
        let all_i32 = |types: &[Option<Number>], count: u32| {
            types.len() == count as usize && types.iter().all(|ty| *ty == Some(Number::I32))
        };
        self.name == name && all_i32(&self.params, params) && all_i32(&self.results, results)
    }

    /// Parameters and results when all of them are numbers.
    #[must_use]
    pub fn numbers(&self) -> Option<(Vec<Number>, Vec<Number>)> {
        let all = |types: &[Option<Number>]| types.iter().copied().collect::<Option<Vec<_>>>();
        Some((all(&self.params)?, all(&self.results)?))
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |types: &[Option<Number>]| {
            let names: Vec<_> = types
                .iter()
                .map(|ty| ty.map_or("other".to_owned(), |ty| format!("{ty:?}").to_lowercase()))
                .collect();
            names.join(", ")
        };
        write!(f, "({}) -> ({})", list(&self.params), list(&self.results))
    }
}

/// An import of a module.
#[derive(Clone, Debug)]
pub struct Import {
    pub module: String,
    pub name: String,
    /// `None` for an import that is not a function.
    pub function: Option<Signature>,
}

/// Pages of a module's exported memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPages {
    pub first: u32,
    pub max: u32,
}

/// Imports and exports of one module.
#[derive(Clone, Debug, Default)]
pub struct ModuleInterface {
    pub exports: Vec<Signature>,
    pub imports: Vec<Import>,
    /// `None` when it exports none.
    pub memory: Option<MemoryPages>,
    /// It exports [`export::RESPONSE`], an immutable `i32`.
    pub lends_response: bool,
    /// It exports [`export::PAYLOAD`], an immutable `i32`.
    pub has_payload: bool,
}

impl ModuleInterface {
    #[must_use]
    pub fn exports_function(&self, name: &str, params: u32, results: u32) -> bool {
        self.exports.iter().any(|function| function.is(name, params, results))
    }

    /// True if it exports [`export::PAYLOAD`] and [`export::RESPONSE`], immutable `i32`s.
    #[must_use]
    pub const fn has_payload_buffer(&self) -> bool {
        self.has_payload && self.lends_response
    }

    /// True if it exports `cwasi_free`.
    #[must_use]
    pub fn frees(&self) -> bool {
        self.exports_function(export::FREE, FREE_PARAMS, 0)
    }

    /// True if the module has no `cwasi_free`, and its memory of `pages` pages is nearly full. Its instance may still
    /// take `left` pages.
    #[must_use]
    pub fn is_nearly_full(&self, pages: u32, left: u32) -> bool {
        let Some(MemoryPages { max, .. }) = self.memory else { return false };
        let max = max.min(pages.saturating_add(left));
        let allocates = self.exports.iter().any(|function| function.name == export::ALLOC);
        allocates && !self.frees() && pages > max - max / PART_LEFT
    }

    #[must_use]
    pub fn initializes(&self) -> bool {
        self.exports_function(export::INITIALIZE, 0, 0)
    }

    #[must_use]
    pub fn imports_from(&self, module: &str) -> bool {
        self.imported_from(module).next().is_some()
    }

    /// Names of its imports from `module`.
    pub fn imported_from(&self, module: &str) -> impl Iterator<Item = &str> {
        let from = move |import: &&Import| import.module == module;
        self.imports.iter().filter(from).map(|import| import.name.as_str())
    }

    /// Limits its memory to `pages_max` pages.
    ///
    /// # Errors
    /// When it starts larger: an engine would shrink it, or fail in the middle.
    pub fn limit_memory(&mut self, pages_max: u32) -> Result<(), VmError> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        memory.max = memory.max.min(pages_max);
        if memory.first > pages_max {
            return Err(VmError::Memory {
                needed: u64::from(memory.first) * PAGE_LEN,
                limit: u64::from(pages_max) * PAGE_LEN,
            });
        }
        Ok(())
    }

    /// Checks that an invocation can call `entry`.
    ///
    /// # Errors
    /// The export that is missing or has another signature.
    pub fn check(&self, entry: &Entry) -> Result<(), VmError> {
        match entry {
            Entry::Reactor => self.check_reactor(""),
            Entry::Prototype if self.exports_function(prototype::FUNCTION, 0, 1) => Ok(()),
            Entry::Prototype => {
                let exported = self.exports.iter().map(|it| format!("`{}`", it.name));
                let what = format!(
                    "a function `{}` without parameters and with one i32 result",
                    prototype::FUNCTION
                );
                Err(VmError::entry(what, entry, &exported.collect::<Vec<_>>()))
            }
            Entry::Command { export } if self.exports_function(export, 0, 0) => Ok(()),
            Entry::Command { export } => {
                let exported: Vec<String> = self
                    .exports
                    .iter()
                    .filter(|function| function.name != trampoline::HOME)
                    .map(|function| format!("`{}`", function.name))
                    .collect();
                let what = format!("a function `{export}` without parameters and results");
                Err(VmError::entry(what, entry, &exported))
            }
        }
    }

    /// Checks that a dispatch can call the module; `name` is an embedded module's.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_reactor(&self, name: &str) -> Result<(), VmError> {
        let exported: Vec<String> =
            self.exports.iter().map(|function| format!("`{}`", function.name)).collect();
        let of = if name.is_empty() { String::new() } else { format!(" in embedded {name}") };
        let missing = |what: String| VmError::entry(what + &of, &Entry::Reactor, &exported);
        for (name, params) in [(export::ALLOC, ALLOC_PARAMS), (export::HANDLE, HANDLE_PARAMS)] {
            if !self.exports_function(name, params, 1) {
                return Err(missing(format!(
                    "a function `{name}` with {params} i32 parameters and one i32 result"
                )));
            }
        }
        if self.exports.iter().any(|function| function.name == export::FREE) && !self.frees() {
            return Err(missing(format!(
                "`{}` with three i32 parameters and no result, but another function of that name",
                export::FREE
            )));
        }
        if self.memory.is_some() {
            Ok(())
        } else {
            Err(missing(format!("its linear memory as `{}`", export::MEMORY)))
        }
    }
}

/// The modules of a VM while it is put together: what one more of them may import.
#[derive(Debug)]
pub struct ImportRules<'a, W> {
    /// Names and interfaces of the embedded modules so far.
    pub embedded: &'a [(&'a str, &'a ModuleInterface)],
    /// Whether the engine's WASI has a function of this type.
    pub wasi: W,
    /// True for the function itself; false for a module that it embeds.
    pub is_root: bool,
    /// The function may reach destinations.
    pub has_network: bool,
    /// The engine serves the import of the prototype's ABI.
    pub has_prototype: bool,
}

impl<W: Fn(&Signature) -> bool> ImportRules<'_, W> {
    /// Checks that all imports are WASI's, ours or an embedded module's.
    ///
    /// # Errors
    /// All others, each with the reason.
    pub fn check(&self, module: &ModuleInterface) -> Result<(), VmError> {
        let wrong: Vec<String> = module
            .imports
            .iter()
            .filter_map(|import| {
                let reason = self.check_import(import).err()?;
                Some(format!("`{}.{}` ({reason})", import.module, import.name))
            })
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(VmError::Imports { imports: wrong }) }
    }

    fn check_import(&self, Import { module, name, function }: &Import) -> Result<(), String> {
        let Some(function) = function else {
            return Err("only functions can be imported".into());
        };
        match module.as_str() {
            WASI if is_socket_function(name) => self.check_socket(name, function),
            WASI if (self.wasi)(function) => Ok(()),
            WASI => Err("not part of WASI preview 1".into()),
            IMPORT_MODULE => match import::parameters(name) {
                None => Err("no such host function in this version".into()),
                Some(params) if function.is(name, params, 1) => Ok(()),
                Some(params) => {
                    Err(format!("its type must be {params} i32 parameters and one i32 result"))
                }
            },
            prototype::IMPORT_MODULE if self.has_prototype && self.is_root => {
                let params = prototype::FUNC_CONNECT_PARAMS;
                let fits = function.is(prototype::FUNC_CONNECT, params, 1);
                fits.then_some(()).ok_or_else(|| "not part of the prototype's ABI".into())
            }
            embedded => {
                let part = self.embedded.iter().find(|(name, _)| *name == embedded);
                let (_, part) = part.ok_or("unknown module")?;
                match part.exports.iter().find(|export| export.name == *name) {
                    None => Err(format!("`{embedded}` does not export it")),
                    Some(export) if export != function => {
                        Err(format!("imported as {function}, exported as {export}"))
                    }
                    Some(export) if export.numbers().is_none() => {
                        Err("only numbers can be passed between modules".into())
                    }
                    Some(_) => Ok(()),
                }
            }
        }
    }

    fn check_socket(&self, name: &str, function: &Signature) -> Result<(), String> {
        let is_in = |table: &[(&str, &[u32])]| {
            table.iter().any(|(known, params)| {
                *known == name && params.iter().any(|count| function.is(name, *count, 1))
            })
        };
        if is_in(&SOCKET_FUNCTIONS) {
            Ok(())
        } else if !is_in(&SOCKET_EXTENSIONS) {
            Err("no socket function of the engine has this name and type".into())
        } else if !self.is_root {
            Err("embedded modules get no sockets".into())
        } else if !self.has_network {
            Err("sockets need destinations: the annotation cwasi.network".into())
        } else {
            Ok(())
        }
    }
}

/// The functions that a module imports from the embedded module `callee`, numbered from `first` on.
#[must_use]
pub fn linked(module: &ModuleInterface, callee: &str, first: usize) -> Vec<LinkedFunction> {
    let mut found: Vec<LinkedFunction> = Vec::new();
    for import in module.imports.iter().filter(|import| import.module == callee) {
        let types = import.function.as_ref().and_then(Signature::numbers);
        let Some((params, results)) = types else { continue };
        if found.iter().any(|function| function.name == import.name) {
            continue;
        }
        let number = u32::try_from(first + found.len()).unwrap_or(u32::MAX);
        found.push(LinkedFunction { number, name: import.name.clone(), params, results });
    }
    found
}
