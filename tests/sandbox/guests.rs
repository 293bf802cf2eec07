//! Small guests, compiled once per test run.

use cwasi_testbed::engines;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A reactor whose first payload byte says how it behaves, or that of the first part when it gets parts.
const REACTOR: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 65536))
  (global $count (mut i32) (i32.const 48))
  (data (i32.const 1024) "deliberate failure")
  (func $alloc (export "cwasi_alloc") (param $len i32) (param $align i32) (result i32)
    (local $ptr i32) (local $end i32) (local $size i32)
    (local.set $ptr (i32.and (i32.add (global.get $next) (i32.const 65535)) (i32.const -65536)))
    (local.set $end (i32.add (local.get $ptr) (local.get $len)))
    (local.set $size (i32.mul (memory.size) (i32.const 65536)))
    (if (i32.gt_u (local.get $end) (local.get $size))
      (then (if (i32.eq (i32.const -1) (memory.grow
          (i32.add (i32.div_u (i32.sub (local.get $end) (local.get $size)) (i32.const 65536)) (i32.const 1))))
        (then (return (i32.const 0))))))
    (global.set $next (local.get $end))
    (local.get $ptr))
  (func $answer (param $out i32) (param $ptr i32) (param $len i32)
    (i32.store (local.get $out) (local.get $ptr))
    (i32.store offset=4 (local.get $out) (local.get $len)))
  (func $recurse (param $n i64) (result i64)
    (i64.store (i32.const 512) (local.get $n))
    (i64.mul (i64.add (call $recurse (i64.add (local.get $n) (i64.const 1))) (i64.const 7)) (i64.load (i32.const 512))))
  (func $sleep
    (i32.store8 (i32.const 2056) (i32.const 0))
    (i32.store (i32.const 2064) (i32.const 1))
    (i64.store (i32.const 2072) (i64.const 3600000000000))
    (drop (call $poll (i32.const 2048) (i32.const 3072) (i32.const 1) (i32.const 4000))))
  (func (export "cwasi_handle") (param $ptr i32) (param $len i32) (param $out i32) (result i32)
    (local $how i32) (local $entry i32) (local $end i32)
    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    (if (i32.eqz (local.get $len))
      (then (call $answer (local.get $out) (i32.const 0) (i32.const 0)) (return (i32.const 0))))
    (local.set $how (i32.load8_u (local.get $ptr)))
    ;; a block of parts
    (if (i32.eq (i32.load (local.get $ptr)) (i32.const 0x42505743))
      (then (local.set $how
        (i32.load8_u (i32.add (local.get $ptr) (i32.load offset=16 (local.get $ptr)))))))
    ;; "s": a summary of parts: the header, each entry's last word being the part's first four bytes
    (if (i32.eq (local.get $how) (i32.const 0x73))
      (then
        (local.set $entry (i32.add (local.get $ptr) (i32.const 16)))
        (local.set $end (i32.add (local.get $entry)
          (i32.mul (i32.load offset=12 (local.get $ptr)) (i32.const 16))))
        (loop $next
          (i32.store offset=12 (local.get $entry)
            (i32.load (i32.add (local.get $ptr) (i32.load (local.get $entry)))))
          (local.set $entry (i32.add (local.get $entry) (i32.const 16)))
          (br_if $next (i32.lt_u (local.get $entry) (local.get $end))))
        (call $answer (local.get $out) (local.get $ptr)
          (i32.sub (local.get $end) (local.get $ptr)))
        (return (i32.const 0))))
    ;; "l": without end
    (if (i32.eq (local.get $how) (i32.const 0x6c))
      (then (loop $again (i32.store (i32.const 600) (i32.add (i32.load (i32.const 600)) (i32.const 1))) (br $again))))
    ;; "o": out of bounds
    (if (i32.eq (local.get $how) (i32.const 0x6f)) (then (i32.store (i32.const -8) (i32.const 1))))
    ;; "r": recursion
    (if (i32.eq (local.get $how) (i32.const 0x72)) (then (i64.store (i32.const 700) (call $recurse (i64.const 1)))))
    ;; "p": poll_oneoff
    (if (i32.eq (local.get $how) (i32.const 0x70)) (then (call $sleep)))
    ;; "x": proc_exit
    (if (i32.eq (local.get $how) (i32.const 0x78)) (then (call $exit (i32.const 3))))
    ;; "f": failure with a message
    (if (i32.eq (local.get $how) (i32.const 0x66))
      (then (call $answer (local.get $out) (i32.const 1024) (i32.const 18)) (return (i32.const 1))))
    ;; "c": how many requests this instance has seen
    (if (i32.eq (local.get $how) (i32.const 0x63))
      (then (i32.store8 (i32.const 800) (global.get $count))
            (call $answer (local.get $out) (i32.const 800) (i32.const 1)) (return (i32.const 0))))
    ;; anything else: echo
    (call $answer (local.get $out) (local.get $ptr) (local.get $len))
    (i32.const 0)))"#;

/// [`REACTOR`], whose `_initialize` draws eight random bytes, with which "n" is answered.
fn random() -> String {
    REACTOR
        .replacen(
            "(memory ",
            r#"(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
            (func (export "_initialize") (drop (call $random (i32.const 900) (i32.const 8))))
            (memory "#,
            1,
        )
        .replacen(
            r#";; "c""#,
            r#"(if (i32.eq (local.get $how) (i32.const 0x6e))
                (then (call $answer (local.get $out) (i32.const 900) (i32.const 8)) (return (i32.const 0))))
            ;; "c""#,
            1,
        )
}

/// [`random`], whose instances take long to make.
pub fn slow() -> String {
    random().replacen(
        r#"(func (export "_initialize") "#,
        r#"(func (export "_initialize")
            (local $left i32)
            (local.set $left (i32.const 300000000))
            (loop $again
              (i32.store (i32.const 600) (local.get $left))
              (local.set $left (i32.sub (local.get $left) (i32.const 1)))
              (br_if $again (local.get $left)))
            "#,
        1,
    )
}

/// A command: "x…" says "err" on stdout and "why" on stderr and exits with 5, "t…" says "why" and traps, anything else
/// is written back after "got:".
const COMMAND: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 4)
  (data (i32.const 100) "got:")
  (data (i32.const 200) "err\n")
  (data (i32.const 204) "why\n")
  (func $put (param $fd i32) (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len))
    (if (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 16)) (then (call $exit (i32.const 9)))))
  (func (export "_start")
    (local $len i32) (local $first i32)
    (local.set $first (i32.const 1))
    (loop $more
      (i32.store (i32.const 0) (i32.const 65536))
      (i32.store (i32.const 4) (i32.const 65536))
      (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)) (then (call $exit (i32.const 8))))
      (local.set $len (i32.load (i32.const 16)))
      (if (local.get $first)
        (then
          (local.set $first (i32.const 0))
          (if (local.get $len) (then
            (if (i32.eq (i32.load8_u (i32.const 65536)) (i32.const 0x78)) (then
              (call $put (i32.const 1) (i32.const 200) (i32.const 4))
              (call $put (i32.const 2) (i32.const 204) (i32.const 4))
              (call $exit (i32.const 5))))
            (if (i32.eq (i32.load8_u (i32.const 65536)) (i32.const 0x74)) (then
              (call $put (i32.const 2) (i32.const 204) (i32.const 4))
              unreachable))))
          (call $put (i32.const 2) (i32.const 200) (i32.const 4))
          (call $put (i32.const 1) (i32.const 100) (i32.const 4))))
      (if (local.get $len)
        (then (call $put (i32.const 1) (i32.const 65536) (local.get $len)) (br $more))))))"#;

/// A primary with one export per behaviour.
const PRIMARY: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 100) "hello\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 100))
    (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))
    (call $exit (i32.const 7)))
  (func (export "returns"))
  (func (export "trap") unreachable)
  (func $recurse (param $n i64) (result i64)
    (i64.store (i32.const 512) (local.get $n))
    (i64.mul (i64.add (call $recurse (i64.add (local.get $n) (i64.const 1))) (i64.const 7)) (i64.load (i32.const 512))))
  (func (export "recurse") (i64.store (i32.const 700) (call $recurse (i64.const 1))))
  (func (export "loop")
    (loop $again (i32.store (i32.const 600) (i32.add (i32.load (i32.const 600)) (i32.const 1))) (br $again))))"#;

/// A caller: calls "callee" with a page of bytes, then allocates, copies and reads the response.
const CALLER: &str = r#"(module
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "cwasi" "request_dispatcher" (func $call (param i32 i32 i32 i32 i32) (result i32)))
  (import "cwasi" "response_read" (func $take (param i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 100) "callee")
  (func (export "_start")
    (local $ptr i32) (local $round i32)
    (memory.fill (i32.const 65536) (i32.const 0x7a) (i32.const 1000))
    (loop $again
      (if (call $call (i32.const 100) (i32.const 6) (i32.const 65536) (i32.const 1000) (i32.const 200))
        (then (call $exit (i32.const 20))))
      (if (i32.load offset=8 (i32.const 200)) (then (call $exit (i32.load offset=8 (i32.const 200)))))
      (local.set $ptr (i32.mul (memory.grow (i32.const 1)) (i32.const 65536)))
      (if (call $take (i32.load (i32.const 200)) (local.get $ptr) (i32.load offset=4 (i32.const 200)))
        (then (call $exit (i32.const 21))))
      (memory.copy (i32.const 70000) (local.get $ptr) (i32.load offset=4 (i32.const 200)))
      (local.set $round (i32.add (local.get $round) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $round) (i32.const 3))))
    (i32.store (i32.const 0) (i32.const 70000))
    (i32.store (i32.const 4) (i32.load offset=4 (i32.const 200)))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"#;

/// Native code of the guests.
pub struct Guests {
    pub reactor: PathBuf,
    pub random: PathBuf,
    pub command: PathBuf,
    pub primary: PathBuf,
    pub caller: PathBuf,
}

/// Compiles them with the binary itself, the way the shim does.
pub fn guests() -> &'static Guests {
    static GUESTS: OnceLock<Guests> = OnceLock::new();
    GUESTS.get_or_init(|| {
        // Nothing runs after the last test, so the next run removes the folder.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sandbox-guests");
        let _not_there = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let build = |name: &str, wat: &str| compile(&dir, name, wat);
        Guests {
            reactor: build("reactor", REACTOR),
            random: build("random", &random()),
            command: build("command", COMMAND),
            primary: build("primary", PRIMARY),
            caller: build("caller", CALLER),
        }
    })
}

/// Native code of one more guest, beside the others.
pub fn compiled(name: &str, wat: &str) -> PathBuf {
    let dir = guests().reactor.parent().unwrap();
    compile(dir, name, wat)
}

fn compile(dir: &Path, name: &str, wat: &str) -> PathBuf {
    let wasm = dir.join(format!("{name}.wasm"));
    std::fs::write(&wasm, wat::parse_str(wat).unwrap()).unwrap();
    cwasi_engine_tests::compile(engines::tested(), &wasm)
}
