//! Makes the stub for LLVM.

#[path = "build/llvm_stub.rs"]
mod llvm_stub;

fn main() {
    println!("cargo::rerun-if-changed=build");
    llvm_stub::write();
}
