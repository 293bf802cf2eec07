//! Generates the messages from `proto/` (pure Rust, no protoc needed), and the stand-in for LLVM.

#[path = "build/stand_in.rs"]
mod stand_in;

fn main() {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build");
    protobuf_codegen::Codegen::new()
        .pure()
        .include("proto")
        .inputs(["proto/envelope.proto", "proto/network.proto"])
        .cargo_out_dir("proto")
        .run_from_script();
    stand_in::write();
}
