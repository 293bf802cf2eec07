//! Generates the messages from `proto/` (pure Rust, without protoc) and the stub for LLVM, and sets linker options
//! for fast loading.

#[path = "build/llvm_stub.rs"]
mod llvm_stub;

fn main() {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build");
    protobuf_codegen::Codegen::new()
        .pure()
        .include("proto")
        .inputs(["proto/envelope.proto", "proto/network.proto"])
        .cargo_out_dir("proto")
        .run_from_script();
    llvm_stub::write();
    // Relocations as a bitmap of 10 KiB instead of a table of 1 MB, which the dynamic linker of glibc 2.36 and later reads.
    // Linkers that do not know the word say so and go on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // A node whose distribution has no WasmEdge gets the engine and its libraries in `lib/cwasi` beside `bin`
    // (deploy/kubernetes/node). The libraries find each other there, too, which the newer kind of path does not do.
    let rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib/cwasi";
    println!("cargo::rustc-link-arg-bin=cwasi-sandbox={rpath}");
}
