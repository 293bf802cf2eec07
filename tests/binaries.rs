//! What the built programs link: the engine costs every process that loads it 12 ms and 7.5 MB, containerd starts the
//! launcher twice per container, and it waits for the daemon.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use cwasi_testbed::engines;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Command;

use cwasi_config::Engine;
use cwasi_coordinator::fingerprint::engine_version;

fn needed(program: &str) -> String {
    let output = Command::new("readelf").args(["--dynamic", "--wide", program]).output();
    let output = output.expect("readelf is there where a compiler is");
    assert!(output.status.success(), "readelf {program}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| line.contains("(NEEDED)")).collect::<Vec<_>>().join("\n")
}

#[test]
fn neither_launcher_nor_shim_link_the_engine() {
    for program in
        [env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1"), env!("CARGO_BIN_EXE_cwasi-shim")]
    {
        let shim = needed(program);
        assert!(shim.contains("libc.so"), "{shim}");
        assert!(!shim.contains("wasmedge") && !shim.contains("LLVM"), "{shim}");
        assert!(!shim.contains("seccomp"), "the shim builds no container: {shim}");
    }
}

#[test]
fn the_launcher_has_nothing_of_the_daemon() {
    let is_daemon = |program: &str| {
        // What `shim::daemon` says when it cannot start.
        let words = b"becoming the subreaper";
        std::fs::read(program).unwrap().windows(words.len()).any(|window| window == words)
    };
    assert!(is_daemon(env!("CARGO_BIN_EXE_cwasi-shim")));
    assert!(!is_daemon(env!("CARGO_BIN_EXE_containerd-shim-cwasi-v1")));
}

#[test]
fn a_sandbox_process_without_llvm_ends_as_it_should() {
    let llvm_stub = cwasi_shim::llvm_stub::file().expect("this machine's engine links LLVM");
    let preload = format!("/proc/{}/fd/{}", std::process::id(), llvm_stub.as_raw_fd());
    let mut sandbox = Command::new(engines::program("cwasi-sandbox-wasmedge"));
    let output = sandbox.arg("--version").env("LD_PRELOAD", preload).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// As the dynamic linker says itself.
#[test]
fn the_engine_calls_the_sandboxs_functions_in_place_of_libcs() {
    let mut sandbox = Command::new(engines::program("cwasi-sandbox-wasmedge"));
    let output = sandbox.arg("--version").env("LD_BIND_NOW", "1").env("LD_DEBUG", "bindings");
    let text = String::from_utf8(output.output().unwrap().stderr).unwrap();
    let engines: Vec<_> = text.lines().filter(|line| line.contains("/libwasmedge.so")).collect();
    for function in
        ["writev", "sigaction", "signal", "epoll_wait", "readv", "recvmsg", "sendmsg", "connect"]
    {
        let symbol = format!("normal symbol `{function}'");
        let bound = engines.iter().find(|line| line.contains(&symbol));
        assert!(bound.unwrap().contains("/cwasi-sandbox-wasmedge [0]:"), "{bound:?}");
    }
}

/// Address of a function of ours in a file with symbols.
fn address_of(file: &Path, function: &str) -> String {
    let output = Command::new("nm").arg("--demangle").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Data of a function has a longer name.
    let code = format!(" t {function}");
    let line = text.lines().find(|line| line.ends_with(&code));
    line.expect("the symbols have it").split(' ').next().unwrap().to_owned()
}

#[test]
fn installed_programs_are_stripped_and_find_their_symbols() {
    let dir = tempfile::tempdir().unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_cwasi-shim"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/install.sh");
    let mut install = Command::new(script);
    install.arg(built.parent().unwrap()).arg(dir.path()).arg("cwasi-shim");
    assert!(install.status().unwrap().success());
    let installed = dir.path().join("cwasi-shim");
    let sections = Command::new("readelf").arg("--sections").arg("--wide").arg(&installed).output();
    let sections = String::from_utf8(sections.unwrap().stdout).unwrap();
    assert!(!sections.contains(".symtab") && !sections.contains(".debug_line"), "{sections}");
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert!(size(&installed) < size(built) / 2);
    let function = "cwasi_shim::daemon::compose";
    let address = address_of(&dir.path().join(".debug/cwasi-shim.debug"), function);
    let mut addr2line = Command::new("addr2line");
    let found = addr2line.args(["--functions", "--demangle", "--exe"]).arg(&installed).arg(address);
    let found = String::from_utf8(found.output().unwrap().stdout).unwrap();
    assert!(found.contains(function) && found.contains("daemon.rs"), "{found}");
    assert!(Command::new(installed).output().unwrap().status.code().is_some_and(|code| code == 1));
}

#[test]
fn the_sandbox_does() {
    let sandbox = needed(engines::program("cwasi-sandbox-wasmedge").to_str().unwrap());
    assert!(sandbox.contains("libwasmedge"), "{sandbox}");
}

/// Code that guests reach has no compiler beside it.
#[test]
fn workers_of_wasmtime_have_no_compiler_in_their_program() {
    let has_compiler = |program: &str| {
        let words = b"cranelift_codegen";
        let bytes = std::fs::read(engines::program(program)).unwrap();
        bytes.windows(words.len()).any(|window| window == words)
    };
    assert!(has_compiler("cwasi-compiler"));
    assert!(!has_compiler("cwasi-sandbox"));
}

#[test]
fn native_code_is_made_for_the_engine_that_is_linked() {
    assert_eq!(engine_version(Engine::Wasmedge), cwasi_wasmedge::VERSION);
    let lock = include_str!("../Cargo.lock");
    let wasmtime =
        format!("name = \"wasmtime\"\nversion = \"{}\"", engine_version(Engine::Wasmtime));
    assert!(lock.contains(&wasmtime), "{wasmtime}");
    assert!(include_str!("../compiler/Cargo.lock").contains(&wasmtime), "{wasmtime}");
}
