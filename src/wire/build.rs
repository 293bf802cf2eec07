//! Generates the messages from `proto/`: pure Rust, without protoc.

fn main() {
    println!("cargo::rerun-if-changed=../../proto");
    protobuf_codegen::Codegen::new()
        .pure()
        .include("../../proto")
        .inputs(["../../proto/envelope.proto", "../../proto/network.proto"])
        .cargo_out_dir("proto")
        .run_from_script();
}
