//! The trampoline in front of `request_dispatcher` and `dispatch_start`, in a function that can dispatch to embedded
//! modules. Runs in the builder. Pure.

use cwasi_abi::{export, import};
use wasm_encoder::{BlockType, ExportKind, Function, InstructionSink, ValType};

use super::builder::{Indirect, Trampoline, count};
use super::{BEGIN, BEGIN_START, Begun, Delivery, END, HOST, PASS, TRAMPOLINE_HOST, instance_name};

/// A module that can be called by dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchCallee {
    pub name: String,
    /// It exports [`export::FREE`].
    pub frees: bool,
    /// It exports [`export::RESPONSE`].
    pub lends_response: bool,
    /// It exports [`export::PAYLOAD`] and [`export::RESPONSE`].
    pub has_payload_buffer: bool,
}

/// The module `cwasi` of a function that can dispatch to embedded modules: the host functions, with trampolines in
/// front of `request_dispatcher` and `dispatch_start`. `callees` are the embedded modules in order; `None` for one
/// that can only be linked.
#[must_use]
pub fn dispatch(callees: &[Option<DispatchCallee>]) -> Vec<u8> {
    let i32s = |count: u32| vec![ValType::I32; count as usize];
    let mut trampoline = Trampoline::default();
    // First, with one type for each: when the engine checks the type of a re-exported function, it takes the index of
    // the type in the host's module for an index in this module.
    for (name, parameters) in import::SIGNATURES {
        if [import::REQUEST_DISPATCHER, import::DISPATCH_START].contains(&name) {
            trampoline.ty(i32s(parameters), i32s(1));
        } else {
            let function = trampoline.import(HOST, name, i32s(parameters), i32s(1));
            trampoline.exports.export(name, ExportKind::Func, function);
        }
    }
    let begun = || i32s(count(Begun::VALUES));
    let begin = trampoline.import(TRAMPOLINE_HOST, BEGIN, i32s(CALL_PARAMS), begun());
    let begin_start = trampoline.import(TRAMPOLINE_HOST, BEGIN_START, i32s(START_PARAMS), begun());
    let pass = trampoline.import(TRAMPOLINE_HOST, PASS, i32s(2), i32s(1));
    let end = trampoline.import(TRAMPOLINE_HOST, END, i32s(1), i32s(1));
    let mut served: Vec<CalleeFunctions> = Vec::new();
    for (index, callee) in callees.iter().enumerate() {
        let Some(callee) = callee else { continue };
        let from = instance_name(&callee.name);
        served.push(CalleeFunctions {
            number: count(index + 1).cast_signed(),
            alloc: trampoline.import(&from, export::ALLOC, i32s(2), i32s(1)),
            handle: trampoline.import(&from, export::HANDLE, i32s(3), i32s(1)),
            free: callee.frees.then(|| trampoline.import(&from, export::FREE, i32s(3), vec![])),
            response: callee.lends_response.then(|| trampoline.import_i32(&from, export::RESPONSE)),
            has_payload_buffer: callee.has_payload_buffer,
            asked: CalleeBlocks::default(),
        });
    }
    // Imported globals are numbered before defined ones.
    for callee in &mut served {
        callee.asked = CalleeBlocks {
            response: trampoline.place(),
            payload: trampoline.place(),
            len: trampoline.place(),
            align: trampoline.place(),
        };
    }
    let home = trampoline.home();
    let callees = &served;
    let call = DispatchBody { params: CALL_PARAMS, begin, pass, end, callees, home };
    trampoline.function(import::REQUEST_DISPATCHER, i32s(CALL_PARAMS), i32s(1), &call.function());
    let start = DispatchBody { params: START_PARAMS, begin: begin_start, ..call };
    trampoline.function(import::DISPATCH_START, i32s(START_PARAMS), i32s(1), &start.function());
    trampoline.finish()
}

/// Parameters of `request_dispatcher`.
const CALL_PARAMS: u32 = 5;
/// Parameters of `dispatch_start`.
const START_PARAMS: u32 = 6;
/// Index of the payload's length in the parameters of both.
const PAYLOAD_LEN: u32 = 3;

struct CalleeFunctions {
    /// Its index among the embedded modules, plus 1.
    number: i32,
    alloc: u32,
    handle: u32,
    free: Option<u32>,
    /// The global with the address for its response.
    response: Option<u32>,
    has_payload_buffer: bool,
    asked: CalleeBlocks,
}

/// Globals with the blocks of a callee's last call; 0 = none. The callee gets them back at the next call, because its
/// response may lie there until then.
#[derive(Clone, Copy, Default)]
struct CalleeBlocks {
    response: u32,
    payload: u32,
    len: u32,
    align: u32,
}

impl CalleeFunctions {
    /// Frees the blocks of the last call.
    fn give_back(&self, code: &mut InstructionSink<'_>) {
        let Some(free) = self.free else { return };
        let CalleeBlocks { response, payload, len, align } = self.asked;
        code.global_get(payload).if_(BlockType::Empty);
        code.global_get(payload).global_get(len).global_get(align).call(free);
        code.i32_const(0).global_set(payload).end();
        if self.response.is_none() {
            code.global_get(response).if_(BlockType::Empty);
            code.global_get(response).i32_const(RESPONSE_LEN).i32_const(RESPONSE_ALIGN).call(free);
            code.i32_const(0).global_set(response).end();
        }
    }

    /// Allocates memory for the response's pointer.
    fn ask_response(&self, code: &mut InstructionSink<'_>) {
        if self.response.is_none() {
            code.i32_const(RESPONSE_LEN).i32_const(RESPONSE_ALIGN).call(self.alloc);
            code.global_set(self.asked.response);
        }
    }

    /// The global with the address of the response's pointer.
    fn response(&self) -> u32 {
        self.response.unwrap_or(self.asked.response)
    }

    /// Allocates a block of `len`, which this pushes, unless there is one.
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

    /// Allocates whole pages for the payload, aligned for huge pages if it fills one, or else any block.
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

    /// Allocates a block for the payload.
    fn ask_bytes(&self, code: &mut InstructionSink<'_>) {
        self.ask(code, PAYLOAD_ALIGN, |code| {
            code.local_get(PAYLOAD_LEN);
        });
    }
}

/// The trampoline of `request_dispatcher` or `dispatch_start`: a call from Wasm to Wasm, with leaf host functions
/// that only move bytes. It has a branch for each callee, because the engine is slower with a call through a table.
struct DispatchBody<'a> {
    /// Number of the callees.
    params: u32,
    begin: u32,
    pass: u32,
    end: u32,
    callees: &'a [CalleeFunctions],
    home: Indirect,
}

impl DispatchBody<'_> {
    fn function(&self) -> Function {
        let locals = Locals::after(self.params);
        let Locals { number, delivery, response, at, .. } = locals;
        let mut body = Function::new([(Locals::COUNT, ValType::I32)]);
        let mut code = body.instructions();
        for index in 0..self.params {
            code.local_get(index);
        }
        code.call(self.begin).local_set(response).local_set(at).local_set(delivery);
        // Not embedded, or not to be called.
        code.local_tee(number).i32_eqz().if_(BlockType::Empty);
        code.local_get(delivery).return_().end();
        match self.callees.split_last() {
            Some((last, others)) => {
                for callee in others {
                    code.local_get(number).i32_const(callee.number).i32_eq();
                    code.if_(BlockType::Result(ValType::I32));
                    self.run(&mut code, callee, locals);
                    code.else_();
                }
                self.run(&mut code, last, locals);
                for _ in others {
                    code.end();
                }
            }
            // The host names no callee where there is none.
            None => {
                code.unreachable();
            }
        }
        code.i32_const(0);
        self.home.call(&mut code);
        code.end();
        body
    }

    /// Runs the callee's handler and pushes the call's errno.
    fn run(&self, code: &mut InstructionSink<'_>, callee: &CalleeFunctions, locals: Locals) {
        let Locals { delivery, at, response, .. } = locals;
        callee.give_back(code);
        if callee.has_payload_buffer {
            const { assert!(Delivery::Buffer.code() == 0) };
            code.local_get(delivery).if_(BlockType::Empty);
            self.pass(code, callee, locals);
            code.end();
        } else {
            self.pass(code, callee, locals);
        }
        code.local_get(at).local_get(PAYLOAD_LEN).local_get(response).call(callee.handle);
        code.call(self.end);
    }

    /// Asks the callee for a block and has the host pass the payload there. Returns if that ends the call.
    fn pass(&self, code: &mut InstructionSink<'_>, callee: &CalleeFunctions, locals: Locals) {
        let Locals { delivery, at, response, errno, .. } = locals;
        let payload = callee.asked.payload;
        code.i32_const(0).global_set(payload);
        callee.ask_response(code);
        code.local_get(delivery).i32_const(Delivery::Pages.code()).i32_eq().if_(BlockType::Empty);
        callee.ask_pages(code);
        code.else_().local_get(PAYLOAD_LEN).if_(BlockType::Empty);
        callee.ask_bytes(code);
        code.end().end();
        code.global_get(callee.response()).local_tee(response);
        code.global_get(payload).local_tee(at).call(self.pass);
        code.local_tee(errno).if_(BlockType::Empty).i32_const(0);
        self.home.call(code);
        code.local_get(errno).i32_const(0).local_get(errno).i32_const(0).i32_gt_s().select();
        code.return_().end();
    }
}

/// Numbers of the locals of [`DispatchBody`], after its parameters.
#[derive(Clone, Copy)]
struct Locals {
    number: u32,
    delivery: u32,
    at: u32,
    /// The address of the response's pointer.
    response: u32,
    /// Of a call that ends before the handler runs.
    errno: u32,
}

impl Locals {
    const COUNT: u32 = 5;

    const fn after(params: u32) -> Self {
        Self {
            number: params,
            delivery: params + 1,
            at: params + 2,
            response: params + 3,
            errno: params + 4,
        }
    }
}

const PAGE: i32 = cwasi_abi::REGION_PAGE.cast_signed();
const HUGE: i32 = cwasi_abi::HUGE_PAGE.cast_signed();
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "8 and 4")]
const RESPONSE_LEN: i32 = cwasi_abi::ResponseRef::SIZE as i32;
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "8 and 4")]
const RESPONSE_ALIGN: i32 = cwasi_abi::ResponseRef::ALIGN as i32;
const PAYLOAD_ALIGN: i32 = cwasi_abi::PAYLOAD_ALIGN.cast_signed();
