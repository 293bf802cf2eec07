//! All code of a function: its own module and its embedded modules. Runs in builder and workers.
#![expect(unsafe_code, reason = "executes native code")]

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::rc::Rc;

use cwasi_abi::{IMPORT_MODULE, export};
use cwasi_components::ComponentFunction;
use cwasi_vm::engine::VmError;
use cwasi_vm::host_calls::binding::{Composition, LinkedImport};
use cwasi_vm::interface::{self, ImportRules, ModuleInterface, PAGE_LEN, PAGES_MAX};
use cwasi_vm::linked_calls::is_linked;
use cwasi_wire::control::EmbeddedModule;
use wasmtime::{Caller, Engine, FuncType, InstancePre, Linker, Module, ModuleExport, ValRaw};

use super::code_file::{CodeFile, LoadedCode, data_images};
use super::link_exports::{LinkExports, passes_buffers};
use super::module_interface::interface_of;
use super::program_code::{self, Loaded, last_with_imports};
use super::vm::VmData;
use super::{Wasmtime, embedded, functions, page_map};

/// All code of one VM.
pub(super) struct Program {
    pub(super) engine: Engine,
    /// The embedded modules, each after its own imports, then the function itself.
    pub(super) parts: Vec<Part>,
    /// What the host functions know of it.
    pub(super) composition: Rc<Composition>,
    /// Where linked functions are, by number.
    pub(super) linked: Vec<(usize, ModuleExport)>,
    /// Linked calls can skip the host (`links`).
    pub(super) links_directly: bool,
    /// Descriptors that wasmtime uses by their number.
    pub(super) descriptors: Vec<RawFd>,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("composition", &self.composition).finish_non_exhaustive()
    }
}

/// One module's code.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) interface: ModuleInterface,
    pub(super) code: PartCode,
    pub(super) exports: PartExports,
    pub(super) image_end: u64,
    /// It can be dispatched to.
    pub(super) is_callee: bool,
    /// `None` if it has no linked functions, or was not changed for them.
    pub(super) links: Option<LinkExports>,
}

/// What runs when a part is called.
pub(super) enum PartCode {
    Module(InstancePre<VmData>),
    Component(Rc<ComponentFunction>),
}

impl Part {
    /// An embedded component.
    fn of_component(name: &str, function: ComponentFunction) -> Self {
        Self {
            name: name.to_owned(),
            interface: ModuleInterface::default(),
            code: PartCode::Component(Rc::new(function)),
            exports: PartExports::default(),
            image_end: 0,
            is_callee: true,
            links: None,
        }
    }

    pub(super) const fn component(&self) -> Option<&Rc<ComponentFunction>> {
        match &self.code {
            PartCode::Module(_) => None,
            PartCode::Component(function) => Some(function),
        }
    }

    /// Place of an export of a module.
    fn place(&self, export: &str) -> Option<ModuleExport> {
        match &self.code {
            PartCode::Module(instance) => instance.module().get_export_index(export),
            PartCode::Component(_) => None,
        }
    }
}

/// Places of a module's exports; `None` where it has none of that name and type.
#[derive(Default)]
pub(super) struct PartExports {
    pub(super) memory: Option<ModuleExport>,
    pub(super) initialize: Option<ModuleExport>,
    pub(super) alloc: Option<ModuleExport>,
    pub(super) handle: Option<ModuleExport>,
    pub(super) free: Option<ModuleExport>,
    pub(super) response: Option<ModuleExport>,
    pub(super) payload: Option<ModuleExport>,
}

impl PartExports {
    fn of(module: &Module, interface: &ModuleInterface) -> Self {
        let function = |name: &str, params, results| {
            let has_type = interface.exports_function(name, params, results);
            has_type.then(|| module.get_export_index(name)).flatten()
        };
        let if_any = |is: bool, name: &str| is.then(|| module.get_export_index(name)).flatten();
        Self {
            memory: if_any(interface.memory.is_some(), export::MEMORY),
            initialize: function(export::INITIALIZE, 0, 0),
            alloc: function(export::ALLOC, 2, 1),
            handle: function(export::HANDLE, 3, 1),
            free: function(export::FREE, 3, 0),
            response: if_any(interface.lends_response, export::RESPONSE),
            payload: if_any(interface.has_payload_buffer(), export::PAYLOAD),
        }
    }
}

impl Program {
    /// Loads a function with its embedded modules.
    pub(super) fn load(
        wasmtime: &Wasmtime,
        root: CodeFile<'_>,
        embedded: &[EmbeddedModule],
    ) -> Result<Self, VmError> {
        let files = embedded.iter().map(|module| CodeFile::open(&module.artifact));
        let files = files.chain([Ok(root)]).collect::<Result<Vec<_>, _>>()?;
        let (engine, loaded) = program_code::load(wasmtime, &files)?;
        let named = embedded.iter().map(|module| (&*module.name, module.dispatch));
        // The last one is the function itself.
        Self::assemble(wasmtime, engine, named.chain([("", false)]).zip(loaded))
    }

    /// Loads a module that a component embeds, with those of the modules `before` it that it links.
    pub(super) fn load_callee(
        wasmtime: &Wasmtime,
        callee: CodeFile<'_>,
        before: Vec<(&str, CodeFile<'_>)>,
    ) -> Result<Self, VmError> {
        let (names, files): (Vec<_>, Vec<_>) = before.into_iter().chain([("", callee)]).unzip();
        let (engine, loaded) = program_code::load(wasmtime, &files)?;
        let modules = names.into_iter().zip(loaded).filter_map(|(name, code)| match code {
            Loaded::Module(code) => Some((name, code)),
            Loaded::Component(_) => None,
        });
        let modules = last_with_imports(modules.collect()).into_iter();
        let modules = modules.map(|(name, code)| ((name, false), Loaded::Module(code)));
        Self::assemble(wasmtime, engine, modules)
    }

    /// `modules` have names, and whether they can be dispatched to; the function itself is the last one, without a name.
    fn assemble<'a>(
        wasmtime: &Wasmtime,
        engine: Engine,
        modules: impl Iterator<Item = ((&'a str, bool), Loaded)>,
    ) -> Result<Self, VmError> {
        let mut loading = ProgramLoader {
            wasmtime,
            engine: &engine,
            parts: Vec::new(),
            linked: Vec::new(),
            composition: Composition { memory_max: wasmtime.memory_max, ..Composition::default() },
        };
        for ((name, dispatch), code) in modules {
            let part = match code {
                Loaded::Module(code) => loading.part(name, dispatch, &code)?,
                Loaded::Component(function) => Part::of_component(name, function),
            };
            loading.parts.push(part);
            if !name.is_empty() {
                loading.composition.embedded.push(name.to_owned());
            }
        }
        let ProgramLoader { parts, linked, composition, .. } = loading;
        let mut descriptors = data_images().map_err(|_| VmError::Setup { what: "descriptors" })?;
        descriptors.extend(page_map::find().map(|(number, _)| number));
        let composition = Rc::new(composition);
        let links_directly = links_directly(&parts);
        Ok(Self { engine, parts, composition, linked, links_directly, descriptors })
    }

    /// The function itself.
    pub(super) fn root(&self) -> &Part {
        self.parts.last().expect("`assemble` has pushed it")
    }

    /// The numbers in the VM of a part's imports of linked functions.
    pub(super) fn numbers_of(
        &self,
        part: usize,
        imports: &[(String, String)],
    ) -> Option<Vec<usize>> {
        let caller = (part < self.embedded().len()).then_some(part);
        let number = |(module, name): &(String, String)| {
            self.composition.functions.iter().position(|function| {
                function.caller == caller
                    && function.name == *name
                    && self.composition.name(function.callee) == module
            })
        };
        imports.iter().map(number).collect()
    }

    /// Its embedded modules.
    pub(super) fn embedded(&self) -> &[Part] {
        self.parts.split_last().map_or(&[], |(_, embedded)| embedded)
    }
}

fn links_directly(parts: &[Part]) -> bool {
    let mut has_links = false;
    for part in parts {
        let imports_linked = part.interface.imports.iter().any(|import| is_linked(&import.module));
        has_links |= imports_linked;
        if part.is_callee
            || passes_buffers(&part.interface)
            || (imports_linked && part.links.is_none())
        {
            return false;
        }
    }
    has_links
}

/// Most pages of a linear memory.
fn pages_max(wasmtime: &Wasmtime) -> u64 {
    wasmtime.memory_max.map_or(PAGES_MAX, |bytes| bytes / PAGE_LEN).min(PAGES_MAX)
}

/// A program under construction.
struct ProgramLoader<'a> {
    wasmtime: &'a Wasmtime,
    engine: &'a Engine,
    parts: Vec<Part>,
    linked: Vec<(usize, ModuleExport)>,
    composition: Composition,
}

impl ProgramLoader<'_> {
    fn part(&mut self, name: &str, is_callee: bool, code: &LoadedCode) -> Result<Part, VmError> {
        let LoadedCode { module, trailer, .. } = code;
        let mut interface = interface_of(module);
        let pages = u32::try_from(pages_max(self.wasmtime)).unwrap_or(u32::MAX);
        interface.limit_memory(pages)?;
        let is_root = name.is_empty();
        let embedded: Vec<_> =
            self.parts.iter().map(|part| (&*part.name, &part.interface)).collect();
        let rules = ImportRules {
            embedded: &embedded,
            wasi: functions::wasi_has,
            is_root,
            has_network: self.wasmtime.network.is_some(),
            // The coordinator lets it pass only with cwasi.compat.
            has_prototype: true,
        };
        rules.check(&interface)?;
        if is_callee {
            interface.check_reactor(name)?;
        }
        let refused =
            |error: wasmtime::Error| VmError::Instantiate { reason: format!("{error:#}") };
        let mut linker = Linker::new(self.engine);
        let dispatches = is_root
            && self.parts.iter().any(|part| part.is_callee)
            && interface.imports_from(IMPORT_MODULE);
        functions::define(&mut linker, self.parts.len(), &interface, dispatches)
            .map_err(refused)?;
        let caller = (!is_root).then_some(self.parts.len());
        for callee in 0..self.parts.len() {
            self.link(&mut linker, module, &interface, caller, callee).map_err(refused)?;
        }
        let instance = linker.instantiate_pre(module).map_err(refused)?;
        let made = module.initialize_copy_on_write_image();
        made.map_err(|_error| VmError::Setup { what: "image of a module's data" })?;
        Ok(Part {
            name: name.to_owned(),
            exports: PartExports::of(module, &interface),
            links: LinkExports::of(module, &interface),
            interface,
            code: PartCode::Module(instance),
            image_end: trailer.image_end,
            is_callee,
        })
    }

    /// Defines what `module` imports from the embedded module `callee`.
    fn link(
        &mut self,
        linker: &mut Linker<VmData>,
        module: &Module,
        interface: &ModuleInterface,
        caller: Option<usize>,
        callee: usize,
    ) -> wasmtime::Result<()> {
        let name = self.parts[callee].name.clone();
        for function in interface::linked(interface, &name, self.linked.len()) {
            let ty = module.imports().find_map(|import| {
                let is = import.module() == name && import.name() == function.name;
                is.then(|| import.ty()).and_then(|ty| ty.func().cloned())
            });
            let exported = self.parts[callee].place(&function.name);
            let (Some(ty), Some(exported)) = (ty, exported) else { continue };
            define_link(linker, &name, &function.name, function.number, ty)?;
            self.linked.push((callee, exported));
            let import = LinkedImport { caller, callee, name: function.name };
            self.composition.functions.push(import);
        }
        Ok(())
    }
}

fn define_link(
    linker: &mut Linker<VmData>,
    module: &str,
    name: &str,
    number: u32,
    ty: FuncType,
) -> wasmtime::Result<()> {
    let call = move |mut caller: Caller<'_, VmData>, values: &mut [MaybeUninit<ValRaw>]| {
        let values: *mut [MaybeUninit<ValRaw>] = values;
        // SAFETY:
        // - plain numbers, for parameters and results; wasmtime has set the parameters, and results are only written.
        let values = unsafe { &mut *(values as *mut [ValRaw]) };
        embedded::linked(&mut caller, number, values)
    };
    // SAFETY:
    // - reads the parameters and writes the results of a function of the same type.
    unsafe { linker.func_new_unchecked(module, name, ty, call) }.map(|_linker| ())
}
