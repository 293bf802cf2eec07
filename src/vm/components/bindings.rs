//! Rust types of the interfaces in `abi/wit` that components import.

wasmtime::component::bindgen!({
    path: "../../../abi/wit",
    world: "cwasi:function/stream-imports",
    imports: {
        "cwasi:calls/calls.call": async | trappable,
        "cwasi:calls/calls.start": async | trappable,
        default: trappable,
    },
    require_store_data_send: true,
    with: {
        "wasi:io": wasmtime_wasi::p2::bindings::io,
        "cwasi:calls/types.payload": super::resources::GuestPayload,
        "cwasi:calls/calls.started-call": super::resources::StartedCall,
    },
});
