//! Sets linker options for fast loading.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Relocations as a bitmap of 10 KiB instead of a table of 1 MB, which the dynamic linker of glibc 2.36 and later reads.
    // Linkers that do not know the word say so and go on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
