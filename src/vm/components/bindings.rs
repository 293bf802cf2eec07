//! Rust types of the interfaces in `abi/wit` that components import.

wasmtime::component::bindgen!({
    path: "../../../abi/wit",
    world: "cwasi:function/imports",
    imports: { default: trappable },
    with: {
        "cwasi:calls/types.payload": super::resources::GuestPayload,
        "cwasi:calls/calls.started-call": super::resources::StartedCall,
    },
});
