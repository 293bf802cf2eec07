//! Generates the envelope types from `proto/` (pure Rust, no protoc needed).

fn main() {
    println!("cargo::rerun-if-changed=proto/envelope.proto");
    protobuf_codegen::Codegen::new()
        .pure()
        .include("proto")
        .input("proto/envelope.proto")
        .cargo_out_dir("proto")
        .run_from_script();
}
