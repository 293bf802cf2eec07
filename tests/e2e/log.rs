//! End to end on a real containerd: where output goes: nobody reads it, a logging program, a file.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;

use cwasi_testbed::scene::{BUSYBOX, Scene, wait_for};

use crate::scene;

/// A stream of a container that `ctr run --detach` has left without a reader.
fn fifo(scene: &Scene, name: &str) -> PathBuf {
    let folders = std::fs::read_dir(scene.node.fifos()).unwrap();
    let mut paths = folders.map(|folder| folder.unwrap().path().join(name));
    paths.find(|path| path.exists()).unwrap()
}

/// Begins to read, and reads until `enough` of it has come.
fn read_until<T>(path: &PathBuf, enough: impl Fn(&str) -> Option<T>) -> (String, T) {
    let mut reader: File =
        OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).unwrap();
    let mut text = String::new();
    let mut chunk = vec![0; 4096];
    let found = wait_for("the log", || {
        match reader.read(&mut chunk) {
            Ok(len) => text.push_str(std::str::from_utf8(&chunk[..len]).unwrap()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        enough(&text)
    });
    (text, found)
}

#[test]
fn a_call_that_dies_in_an_unread_write_says_so() {
    let scene = scene("full");
    let printer = scene.guest("printer", "actor").args(["print"]);
    let printer = printer.annotation("cwasi.role", "secondary");
    let printer = printer.annotation("cwasi.function", "printer");
    scene.start(printer.annotation("cwasi.timeout", "6s"));
    let call = |id: &str, payload: &str| {
        scene.run(scene.guest(id, "probe").args(["call", "printer", payload]))
    };
    let _fits = call("small", "one line").success();
    // Its own output waits for a reader, as with any runtime.
    let outcome = call("large", &"x".repeat(100_000));
    assert_eq!(outcome.code, 5, "{}", outcome.stderr);
    for part in ["did not end before its deadline", "stdout is full and has no reader"] {
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    let all = |text: &str| (text.len() > 60_000).then_some(());
    let _read = read_until(&fifo(&scene, "printer-stdout"), all);
    let _served = call("again", "another line").success();
}

#[test]
fn stderr_of_a_failure_reaches_log_and_caller() {
    /// What a caller gets of it, the end of the line included.
    const TAIL: usize = 1024;
    let scene = scene("stderr-tail");
    scene.secondary("filter", "filter");
    let said = format!("{}{}", "a".repeat(3 * TAIL), "b".repeat(TAIL - 1));
    let fail = format!("!fail {said}");
    let outcome = scene.run(scene.guest("p", "probe").args(["call", "filter", &fail]));
    assert_eq!(outcome.code, cwasi_abi::Errno::Failed.code(), "{}", outcome.stderr);
    let end = format!("filter: exit code 3; end of its stderr: {}\n", "b".repeat(TAIL - 1));
    assert!(outcome.stderr.ends_with(&end), "{}", outcome.stderr);
    // The log was a pipe without a reader until now, and has all of it.
    let whole = |text: &str| text.contains('\n').then_some(());
    let (text, ()) = read_until(&fifo(&scene, "filter-stderr"), whole);
    assert_eq!(text, format!("{said}\n"));
}

/// A logging program: each stream to a file of its own, with the container's name and the URI's arguments before.
const LOGGER: &str = "#!/bin/sh
cd \"${0%/*}\"
echo \"$CONTAINER_NAMESPACE/$CONTAINER_ID $*\" > started
exec 5>&-
cat <&4 > err &
cat <&3 > out
wait
echo $$ > ended
";

#[test]
fn a_logging_program_reads_the_output_of_functions_and_programs() {
    let scene = scene("log-uri");
    scene.import_busybox();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("logger");
    std::fs::write(&program, LOGGER).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name));
    let uri = format!("binary://{}?level=info&quiet=", program.display());
    let function = scene.guest("function", "probe").args(["both", "out", "err"]);
    let script = "echo out; echo err >&2";
    let native = scene.image(BUSYBOX, "native").args(["sh", "-c", script]);
    for (run, id) in [(function, "function"), (native, "native")] {
        scene.start(run.flag("--log-uri").flag(&uri));
        scene.wait_stopped(id);
        assert_eq!(scene.remove(id), 0, "{id}");
        // The removal waits for the program.
        assert!(read("ended").is_ok(), "{id}");
        std::fs::remove_file(dir.path().join("ended")).unwrap();
        assert_eq!(read("out").unwrap(), "out\n", "{id}");
        // Before it may come what the runtime says about compiling.
        assert!(read("err").unwrap().ends_with("err\n"), "{id}: {:?}", read("err"));
        assert_eq!(
            read("started").unwrap(),
            format!("{}/{id} level info quiet\n", scene.namespace)
        );
    }
}

#[test]
fn log_uris_name_files_or_are_errors() {
    let scene = scene("log-file");
    scene.import_busybox();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("of a/log");
    let uri = format!("file://{}", file.display()).replace(' ', "%20");
    let function = scene.guest("function", "probe").args(["both", "out", "err"]);
    let native = scene.image(BUSYBOX, "native").args(["sh", "-c", "echo native; echo err >&2"]);
    for (run, id) in [(function, "function"), (native, "native")] {
        scene.start(run.flag("--log-uri").flag(&uri));
        scene.wait_stopped(id);
        scene.remove(id);
    }
    let text = std::fs::read_to_string(&file).unwrap();
    for line in ["out\n", "err\n", "native\n"] {
        assert!(text.contains(line), "{line:?} is missing in {text:?}");
    }
    for (uri, words) in [
        ("binary:///no/such/logger", "/no/such/logger"),
        ("ftp:///x", "unknown scheme"),
        ("file:x", "names no file"),
    ] {
        let run = scene.guest("refused", "probe").args(["exit", "0"]).flag("--log-uri").flag(uri);
        let outcome = run.detach(&scene.containerd).unwrap();
        assert_ne!(outcome.code, 0, "{uri}");
        assert!(outcome.stderr.contains(words), "{uri}: {}", outcome.stderr);
        let _removed = scene.ctr(["container", "rm", "refused"]);
    }
}
