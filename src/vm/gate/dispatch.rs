//! The gate in front of `request_dispatcher` and `dispatch_start`, in a function that may dispatch to embedded modules.

use cwasi_abi::{export, import};
use wasm_encoder::{BlockType, ExportKind, Function, InstructionSink, ValType};

use super::builder::{Gate, Indirect, count};
use super::{BEGIN, BEGIN_START, END, GATE_HOST, HOST, PASS, instance_name};

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
