//! Makes the stub for LLVM: a library with the same name and symbols, without code. Runs in the build script.
//!
//! `libwasmedge` binds every symbol at load time, so a process that only runs compiled modules would load LLVM, too:
//! 2,400 page faults and 10 MB of private memory for unused relocations. The zygote preloads the stub
//! (`src/shim/llvm_stub.rs`), and the dynamic linker uses it instead of the LLVM that `libwasmedge` names.
//!
//! If the machine has no WasmEdge, or an engine that contains LLVM, or no binutils, the file is empty: then there is no
//! stub.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the result in Cargo's output folder.
const NAME: &str = "llvm-stub.so";
/// File of the engine in the folder of its libraries.
const ENGINE: &str = "libwasmedge.so";
/// How LLVM's library, its symbols and their versions begin.
const LIBRARY: &str = "libLLVM";
const VERSION: &str = "LLVM_";
/// `llvm::deallocate_buffer(void*, unsigned long, unsigned long)`.
const AT_EXIT: &str = "_ZN4llvm17deallocate_bufferEPvmm";

/// Writes the stub for the LLVM of the engine that is linked, or an empty file.
pub fn write() {
    println!("cargo::rerun-if-env-changed=WASMEDGE_LIB_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join(NAME);
    let engine = engine();
    if engine.as_deref().and_then(|engine| build(engine, &out)).is_none() {
        fs::write(&out, b"").expect("cargo's output folder can be written");
        if engine.is_some() {
            println!("cargo::warning=no LLVM stub: WasmEdge starts slower and takes more memory");
        }
    }
}

/// WasmEdge's library, where it is or may be installed later.
fn engine() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("WASMEDGE_LIB_DIR")?);
    let library = folder.join(ENGINE);
    // Cargo takes a file that is not there for one that always changes.
    let watched = [&library, &folder].into_iter().find(|path| path.exists())?;
    println!("cargo::rerun-if-changed={}", watched.display());
    library.exists().then_some(library)
}

fn build(engine: &Path, out: &Path) -> Option<()> {
    let name = name_of_llvm(&output(Command::new("readelf").arg("-d").arg(engine))?)?;
    let nm = ["-D", "--undefined-only", "--with-symbol-versions"];
    let (symbols, version) = symbols(&output(Command::new("nm").args(nm).arg(engine))?)?;
    let arch = env::var("CARGO_CFG_TARGET_ARCH").ok()?;
    let trap = match arch.as_str() {
        "x86_64" => "ud2",
        "aarch64" => "udf #0",
        _ => return None,
    };
    // A caller of one of them ends at once, where a debugger shows which one it was; but for the one that is called whenever
    // a process ends, for maps that nothing was put into.
    let mut assembly = format!(".text\nnone: {trap}\nnothing: ret\n");
    for symbol in symbols {
        let place = if symbol == AT_EXIT { "nothing" } else { "none" };
        let line = ".globl {s}\n.type {s},%function\n.set {s},{p}\n";
        assembly.write_str(&line.replace("{s}", &symbol).replace("{p}", place)).ok()?;
    }
    assembly.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    let (source, map) = (out.with_extension("s"), out.with_extension("map"));
    fs::write(&source, assembly).ok()?;
    fs::write(&map, format!("{version} {{ global: *; }};\n")).ok()?;
    let mut link = Command::new(compiler(&arch));
    link.args(["-shared", "-nostdlib", "-s", "-Wl,-z,norelro", "-o"]).arg(out).arg(&source);
    link.arg(format!("-Wl,-soname,{name}"));
    link.arg(format!("-Wl,--version-script={}", map.display()));
    output(&mut link).map(drop)
}

/// Debian's name of the compiler for another architecture, unless the variable names one.
fn compiler(arch: &str) -> OsString {
    let is_cross = env::var_os("TARGET") != env::var_os("HOST");
    let usual = if is_cross { format!("{arch}-linux-gnu-gcc") } else { "cc".to_owned() };
    env::var_os("CC").unwrap_or_else(|| usual.into())
}

/// What a program says, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.env("LC_ALL", "C").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `0x… (NEEDED) Shared library: [libLLVM.so.19.1]`.
fn name_of_llvm(dynamic: &str) -> Option<String> {
    let mut needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let name = needed.find_map(|line| {
        let (_, name) = line.split_once('[')?;
        name.strip_suffix(']').filter(|name| name.starts_with(LIBRARY))
    });
    name.map(str::to_owned)
}

/// `U LLVMAddFunction@LLVM_19.1`; all of one version, or there can be no stub.
fn symbols(undefined: &str) -> Option<(BTreeSet<String>, String)> {
    let (mut symbols, mut versions) = (BTreeSet::new(), BTreeSet::new());
    for line in undefined.lines() {
        let Some((symbol, version)) =
            line.split_whitespace().last().and_then(|word| word.split_once('@'))
        else {
            continue;
        };
        if version.starts_with(VERSION) {
            symbols.insert(symbol.to_owned());
            versions.insert(version.to_owned());
        }
    }
    let version = versions.pop_first()?;
    versions.is_empty().then_some((symbols, version))
}
