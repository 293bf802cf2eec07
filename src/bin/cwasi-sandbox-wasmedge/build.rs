//! Sets linker options for fast loading, and for an engine beside the program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Relocations as a bitmap of 10 KiB instead of a table of 1 MB, which the dynamic linker of glibc 2.36 and later reads.
    // Linkers that do not know the word say so and go on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // A node whose distribution has no WasmEdge gets the engine and its libraries in `lib/cwasi` beside `bin`
    // (deploy/kubernetes/node). The libraries find each other there, too, which the newer kind of path does not do.
    println!("cargo::rustc-link-arg-bins=-Wl,--disable-new-dtags,-rpath,$ORIGIN/../lib/cwasi");
}
