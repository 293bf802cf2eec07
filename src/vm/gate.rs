//! Gates: generated modules that stand between a module and what is embedded in it (docs/embedding.md).
//!
//! A compiled function that calls into another compiled module finds the *other* module's memories and
//! globals when the call returns: the engine sets its thread-local context on entry and does not restore it.
//! So such a call goes through a gate, which the engine interprets, and which enters the caller once more,
//! through the empty function [`HOME`] that the coordinator appended to it, before it returns.
//!
//! Pure: bytes out of names and types. Knows no engine.

use cwasi_abi::{export, import};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, GlobalSection, GlobalType, ImportSection, InstructionSink, Module, RefType,
    TableSection, TableType, TypeSection, ValType,
};

pub use cwasi_abi::HOME_EXPORT as HOME;

/// Module from which a gate imports the leaf host functions below; no guest can import from it.
pub const GATE_HOST: &str = "cwasi:gate";
/// Module from which a dispatch gate takes the host functions that it hands through.
pub const HOST: &str = "cwasi:host";
/// A gate's table of one function: the caller's [`HOME`], set once the caller is there.
pub const HOME_TABLE: &str = "home";

/// `(function)`: a static call begins; `function` is the number that [`LinkedFunction`] has.
pub const ENTER: &str = "enter";
/// `()`: the static call that began last is over.
pub const LEAVE: &str = "leave";
/// `request_dispatcher`'s parameters `-> errno`, or a [`route`] when the callee is embedded.
pub const BEGIN: &str = "begin";
/// `dispatch_start`'s parameters `-> errno`, or a [`route`] when the callee is embedded.
pub const BEGIN_START: &str = "begin_start";
/// `(response_out, payload_ptr) -> errno`: the payload is copied to where the callee allocated.
pub const PASS: &str = "pass";
/// `(status) -> errno`: the callee answered.
pub const END: &str = "end";

/// What [`BEGIN`] says when the embedded module `callee` serves the call, below zero; `in_pages` has it allocate whole
/// pages for the payload.
#[must_use]
pub fn route(callee: usize, in_pages: bool) -> Option<i32> {
    let callee = i32::try_from(callee).ok()?.checked_mul(2)?;
    Some(-1 - (callee + i32::from(in_pages)))
}

/// A number that Wasm functions take and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
}

impl From<Number> for ValType {
    fn from(number: Number) -> Self {
        match number {
            Number::I32 => Self::I32,
            Number::I64 => Self::I64,
            Number::F32 => Self::F32,
            Number::F64 => Self::F64,
        }
    }
}

/// A function that a module imports from an embedded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedFunction {
    /// Its number within the VM, passed to [`ENTER`].
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Types of its parameters.
    pub params: Vec<Number>,
    /// Types of its results.
    pub results: Vec<Number>,
}

/// Name under which an embedded module's instance is known to gates; no guest can import from it.
#[must_use]
pub fn instance_name(embedded: &str) -> String {
    format!("cwasi:embedded:{embedded}")
}

/// A module that can be dispatched to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Its name.
    pub name: String,
    /// It exports [`export::FREE`].
    pub frees: bool,
    /// It exports [`export::RESPONSE`].
    pub lends_response: bool,
}

/// The gate through which a module calls `functions` of the module `embedded`.
#[must_use]
pub fn link(embedded: &str, functions: &[LinkedFunction]) -> Vec<u8> {
    let mut gate = Gate::default();
    let enter = gate.import(GATE_HOST, ENTER, vec![ValType::I32], vec![]);
    let leave = gate.import(GATE_HOST, LEAVE, vec![], vec![]);
    let from = instance_name(embedded);
    let callees: Vec<u32> = functions
        .iter()
        .map(|function| gate.import(&from, &function.name, params(function), results(function)))
        .collect();
    let home = gate.home();
    for (function, callee) in functions.iter().zip(callees) {
        let mut body = Function::new([]);
        let mut code = body.instructions();
        code.i32_const(function.number.cast_signed()).call(enter);
        for index in 0..count(function.params.len()) {
            code.local_get(index);
        }
        code.call(callee).call(leave).i32_const(0);
        home.call(&mut code);
        code.end();
        gate.function(&function.name, params(function), results(function), &body);
    }
    gate.finish()
}

/// What stands in for the module `cwasi` in a function that may dispatch to embedded ones: the host functions
/// as they are, and `request_dispatcher` and `dispatch_start` in front of the host's. `callees` are the embedded modules in order;
/// `None` is one that can only be linked.
#[must_use]
pub fn dispatch(callees: &[Option<Callee>]) -> Vec<u8> {
    let i32s = |count: u32| vec![ValType::I32; count as usize];
    let mut gate = Gate::default();
    // First, and one type for each: where the engine matches a function that is handed through, it takes the
    // index of the function's type in the host's module for one in this module.
    for (name, parameters) in import::SIGNATURES {
        if [import::REQUEST_DISPATCHER, import::DISPATCH_START].contains(&name) {
            gate.ty(i32s(parameters), i32s(1));
        } else {
            let function = gate.import(HOST, name, i32s(parameters), i32s(1));
            gate.exports.export(name, ExportKind::Func, function);
        }
    }
    let begin = gate.import(GATE_HOST, BEGIN, i32s(CALL_PARAMS), i32s(1));
    let begin_start = gate.import(GATE_HOST, BEGIN_START, i32s(START_PARAMS), i32s(1));
    let pass = gate.import(GATE_HOST, PASS, i32s(2), i32s(1));
    let end = gate.import(GATE_HOST, END, i32s(1), i32s(1));
    let mut served: Vec<Served> = Vec::new();
    for (index, callee) in callees.iter().enumerate() {
        let Some(callee) = callee else { continue };
        let from = instance_name(&callee.name);
        served.push(Served {
            index: count(index).cast_signed(),
            alloc: gate.import(&from, export::ALLOC, i32s(2), i32s(1)),
            handle: gate.import(&from, export::HANDLE, i32s(3), i32s(1)),
            free: callee.frees.then(|| gate.import(&from, export::FREE, i32s(3), vec![])),
            response: callee.lends_response.then(|| gate.import_i32(&from, export::RESPONSE)),
            asked: Asked::default(),
        });
    }
    // Imported globals are numbered before those that are defined.
    for callee in &mut served {
        callee.asked = Asked {
            response: gate.place(),
            payload: gate.place(),
            len: gate.place(),
            align: gate.place(),
        };
    }
    let home = gate.home();
    let callees = &served;
    let call = DispatchBody { params: CALL_PARAMS, begin, pass, end, callees, home };
    gate.function(import::REQUEST_DISPATCHER, i32s(CALL_PARAMS), i32s(1), &call.function());
    let start = DispatchBody { params: START_PARAMS, begin: begin_start, ..call };
    gate.function(import::DISPATCH_START, i32s(START_PARAMS), i32s(1), &start.function());
    gate.finish()
}

/// Parameters of `request_dispatcher`.
const CALL_PARAMS: u32 = 5;
/// Parameters of `dispatch_start`.
const START_PARAMS: u32 = 6;
/// Index of the payload's length among either's.
const PAYLOAD_LEN: u32 = 3;

/// A module that is called, as its gate sees it: its functions.
struct Served {
    /// Its place among the embedded modules.
    index: i32,
    alloc: u32,
    handle: u32,
    free: Option<u32>,
    /// The global that says where it wants to tell its response.
    response: Option<u32>,
    asked: Asked,
}

/// Globals with what a callee was asked for in its last call; 0 = nothing. It gets them back when it is called again:
/// until then its response may lie there.
#[derive(Clone, Copy, Default)]
struct Asked {
    response: u32,
    payload: u32,
    len: u32,
    align: u32,
}

impl Served {
    /// Gives back what the last call was asked for.
    fn give_back(&self, code: &mut InstructionSink<'_>) {
        let Some(free) = self.free else { return };
        let Asked { response, payload, len, align } = self.asked;
        code.global_get(payload).if_(BlockType::Empty);
        code.global_get(payload).global_get(len).global_get(align).call(free);
        code.i32_const(0).global_set(payload).end();
        if self.response.is_none() {
            code.global_get(response).if_(BlockType::Empty);
            code.global_get(response).i32_const(RESPONSE_LEN).i32_const(RESPONSE_ALIGN).call(free);
            code.i32_const(0).global_set(response).end();
        }
    }

    /// Asks where the response is to be told.
    fn ask_response(&self, code: &mut InstructionSink<'_>) {
        if self.response.is_none() {
            code.i32_const(RESPONSE_LEN).i32_const(RESPONSE_ALIGN).call(self.alloc);
            code.global_set(self.asked.response);
        }
    }

    /// Pushes where the response is to be told.
    fn push_response(&self, code: &mut InstructionSink<'_>) {
        code.global_get(self.response.unwrap_or(self.asked.response));
    }

    /// Asks for a block of `len`, which this pushes, unless there is one.
    fn ask(
        &self,
        code: &mut InstructionSink<'_>,
        align: i32,
        len: impl Fn(&mut InstructionSink<'_>),
    ) {
        let asked = self.asked;
        code.global_get(asked.payload).i32_eqz().if_(BlockType::Empty);
        len(code);
        code.global_set(asked.len).i32_const(align).global_set(asked.align);
        code.global_get(asked.len).i32_const(align).call(self.alloc).global_set(asked.payload);
        code.end();
    }

    /// Asks for whole pages for the payload, at the start of a huge one if it fills that, or any block for it.
    fn ask_pages(&self, code: &mut InstructionSink<'_>) {
        let pages = |code: &mut InstructionSink<'_>| {
            // Payloads are far from 4 GiB (PAYLOAD_MAX): this does not wrap.
            code.local_get(PAYLOAD_LEN).i32_const(PAGE - 1).i32_add().i32_const(-PAGE).i32_and();
        };
        code.local_get(PAYLOAD_LEN).i32_const(HUGE).i32_ge_u().if_(BlockType::Empty);
        self.ask(code, HUGE, pages);
        code.end();
        self.ask(code, PAGE, pages);
        self.ask_bytes(code);
    }

    /// Asks for a block for the payload.
    fn ask_bytes(&self, code: &mut InstructionSink<'_>) {
        self.ask(code, PAYLOAD_ALIGN, |code| {
            code.local_get(PAYLOAD_LEN);
        });
    }
}

/// `request_dispatcher` or `dispatch_start` of a gate: a call from Wasm to Wasm, with leaf host functions that only
/// move bytes. It has a branch for each callee: the engine takes longer for a call through a table.
struct DispatchBody<'a> {
    /// How many there are.
    params: u32,
    begin: u32,
    pass: u32,
    end: u32,
    callees: &'a [Served],
    home: Indirect,
}

impl DispatchBody<'_> {
    fn function(&self) -> Function {
        let route = self.params;
        let [callee, errno, in_pages] = [1, 2, 3].map(|local| route + local);
        let mut body = Function::new([(4, ValType::I32)]);
        let mut code = body.instructions();
        for index in 0..self.params {
            code.local_get(index);
        }
        // Not embedded, or not to be called at all: the host has dealt with it.
        code.call(self.begin).local_tee(route).i32_const(0).i32_ge_s().if_(BlockType::Empty);
        code.local_get(route).return_().end();
        code.i32_const(-1).local_get(route).i32_sub().local_tee(callee);
        code.i32_const(1).i32_and().local_set(in_pages);
        code.local_get(callee).i32_const(1).i32_shr_u().local_set(callee);
        for served in self.callees {
            let payload = served.asked.payload;
            code.local_get(callee).i32_const(served.index).i32_eq().if_(BlockType::Empty);
            served.give_back(&mut code);
            code.i32_const(0).global_set(payload);
            served.ask_response(&mut code);
            code.local_get(in_pages).if_(BlockType::Empty);
            served.ask_pages(&mut code);
            code.else_().local_get(PAYLOAD_LEN).if_(BlockType::Empty);
            served.ask_bytes(&mut code);
            code.end().end();
            served.push_response(&mut code);
            code.global_get(payload).call(self.pass);
            code.local_tee(errno).i32_eqz().if_(BlockType::Empty);
            code.global_get(payload).local_get(PAYLOAD_LEN);
            served.push_response(&mut code);
            code.call(served.handle).call(self.end).local_set(errno).end();
            code.end();
        }
        code.i32_const(0);
        self.home.call(&mut code);
        code.local_get(errno).end();
        body
    }
}

const PAGE: i32 = cwasi_abi::REGION_PAGE.cast_signed();
const HUGE: i32 = cwasi_abi::HUGE_PAGE.cast_signed();
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "8 and 4")]
const RESPONSE_LEN: i32 = cwasi_abi::ResponseRef::SIZE as i32;
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "8 and 4")]
const RESPONSE_ALIGN: i32 = cwasi_abi::ResponseRef::ALIGN as i32;
const PAYLOAD_ALIGN: i32 = cwasi_abi::PAYLOAD_ALIGN.cast_signed();

/// Functions of one type behind a table; the index is on the stack.
#[derive(Clone, Copy)]
struct Indirect {
    table: u32,
    ty: u32,
}

impl Indirect {
    fn call(self, code: &mut InstructionSink<'_>) {
        code.call_indirect(self.table, self.ty);
    }
}

/// A module in the making. Functions are imported before any is defined.
#[derive(Default)]
struct Gate {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    globals: GlobalSection,
    exports: ExportSection,
    code: CodeSection,
    function_count: u32,
    imported_globals: u32,
}

impl Gate {
    fn ty(&mut self, params: Vec<ValType>, results: Vec<ValType>) -> u32 {
        self.types.ty().function(params, results);
        self.types.len() - 1
    }

    fn import(
        &mut self,
        module: &str,
        name: &str,
        params: Vec<ValType>,
        results: Vec<ValType>,
    ) -> u32 {
        let ty = self.ty(params, results);
        self.imports.import(module, name, EntityType::Function(ty));
        self.function_count += 1;
        self.function_count - 1
    }

    /// An immutable global, by its number.
    fn import_i32(&mut self, module: &str, name: &str) -> u32 {
        let ty = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
        self.imports.import(module, name, EntityType::Global(ty));
        self.imported_globals += 1;
        self.imported_globals - 1
    }

    fn table_of(&mut self, len: usize) -> u32 {
        let len = u64::from(count(len));
        self.tables.table(TableType {
            element_type: RefType::FUNCREF,
            table64: false,
            minimum: len,
            maximum: Some(len),
            shared: false,
        });
        self.tables.len() - 1
    }

    /// The way back into the caller; called with index 0.
    fn home(&mut self) -> Indirect {
        let table = self.table_of(1);
        self.exports.export(HOME_TABLE, ExportKind::Table, table);
        Indirect { table, ty: self.ty(vec![], vec![]) }
    }

    /// A global that begins with 0, by its number; the imported ones are all there.
    fn place(&mut self) -> u32 {
        let ty = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
        self.globals.global(ty, &ConstExpr::i32_const(0));
        self.imported_globals + self.globals.len() - 1
    }

    fn function(
        &mut self,
        name: &str,
        params: Vec<ValType>,
        results: Vec<ValType>,
        body: &Function,
    ) {
        let function = self.define(params, results, body);
        self.exports.export(name, ExportKind::Func, function);
    }

    fn define(&mut self, params: Vec<ValType>, results: Vec<ValType>, body: &Function) -> u32 {
        let ty = self.ty(params, results);
        self.functions.function(ty);
        self.code.function(body);
        self.function_count += 1;
        self.function_count - 1
    }

    fn finish(self) -> Vec<u8> {
        let mut module = Module::new();
        module
            .section(&self.types)
            .section(&self.imports)
            .section(&self.functions)
            .section(&self.tables)
            .section(&self.globals)
            .section(&self.exports)
            .section(&self.code);
        module.finish()
    }
}

fn params(function: &LinkedFunction) -> Vec<ValType> {
    function.params.iter().copied().map(Into::into).collect()
}

fn results(function: &LinkedFunction) -> Vec<ValType> {
    function.results.iter().copied().map(Into::into).collect()
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a module has far less than 2^32 of anything")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(bytes: &[u8]) -> String {
        wasmparser::validate(bytes).expect("a gate is a valid module");
        wasmprinter::print_bytes(bytes).expect("and can be printed")
    }

    #[test]
    fn a_link_gate_goes_home_after_every_call() {
        let function = |number, name: &str, params: &[Number], results: &[Number]| LinkedFunction {
            number,
            name: name.into(),
            params: params.to_vec(),
            results: results.to_vec(),
        };
        let text = valid(&link(
            "fn_utils",
            &[
                function(7, "mix", &[Number::I32, Number::F64], &[Number::I64, Number::F32]),
                function(8, "nothing", &[], &[]),
            ],
        ));
        assert!(text.contains(r#"(import "cwasi:embedded:fn_utils" "mix""#), "{text}");
        assert_eq!(text.matches("call_indirect").count(), 2, "{text}");
        assert!(text.contains("i32.const 7"), "{text}");
    }

    #[test]
    fn a_dispatch_gate_hands_every_host_function_through() {
        let callee = |name: &str, frees, lends_response| {
            Some(Callee { name: name.to_owned(), frees, lends_response })
        };
        for (frees, lends) in [(false, false), (true, false), (false, true), (true, true)] {
            let text =
                valid(&dispatch(&[callee("a", frees, lends), None, callee("b", true, false)]));
            for (name, _) in import::SIGNATURES {
                assert!(text.contains(&format!(r#"(export "{name}""#)), "{name} missing in {text}");
            }
            let frees = 1 + usize::from(frees);
            assert_eq!(text.matches(r#""cwasi_free""#).count(), frees, "{text}");
            assert_eq!(text.matches(r#""cwasi_response""#).count(), usize::from(lends), "{text}");
        }
        valid(&dispatch(&[]));
    }
}
