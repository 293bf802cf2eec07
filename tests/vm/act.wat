;; The function of the tests in virtual machines: small, because it is compiled in each of them.
;;
;; `_start` echoes its payload, unless that begins with "E" (it takes memory until something ends it), "S" (it never
;; returns) or "F" (it says why on stderr and exits with 5). The other exports do the same without a payload, or call the
;; function `callee` with such a payload: they print the answer or the error's text, and exit with the errno.
(module
  (import "cwasi" "request_dispatcher" (func $dispatch (param i32 i32 i32 i32 i32) (result i32)))
  (import "cwasi" "response_read" (func $response (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 100) "callee")
  (data (i32.const 200) "echo")
  (data (i32.const 300) "why")
  ;; At 0 a range of memory for reads and writes, at 16 its length in the end, at 64 the outcome of a call.
  (func $range (param $ptr i32) (param $len i32)
    (i32.store (i32.const 0) (local.get $ptr))
    (i32.store (i32.const 4) (local.get $len)))
  (func $say (param $fd i32) (param $ptr i32) (param $len i32)
    (call $range (local.get $ptr) (local.get $len))
    (drop (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 16))))
  (func $eat (export "eat")
    (local $page i32)
    (loop $more
      (local.set $page (memory.grow (i32.const 1)))
      (if (i32.eq (local.get $page) (i32.const -1)) (then unreachable))
      ;; Something in each page of 4 KiB, in all 64 KiB.
      (memory.fill (i32.shl (local.get $page) (i32.const 16)) (i32.const 1) (i32.const 65536))
      (br $more)))
  (func $spin (export "spin") (loop $more (br $more)))
  (func (export "_start")
    (local $first i32)
    (call $range (i32.const 65536) (i32.const 65536))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)))
    (if (i32.load (i32.const 16)) (then (local.set $first (i32.load8_u (i32.const 65536)))))
    (if (i32.eq (local.get $first) (i32.const 0x45)) (then (call $eat)))
    (if (i32.eq (local.get $first) (i32.const 0x53)) (then (call $spin)))
    (if (i32.eq (local.get $first) (i32.const 0x46)) (then
      (call $say (i32.const 2) (i32.const 300) (i32.const 3))
      (call $exit (i32.const 5))))
    (call $say (i32.const 1) (i32.const 65536) (i32.load (i32.const 16))))
  (func $call (param $payload i32)
    (local $errno i32)
    (i32.store8 (i32.const 200) (local.get $payload))
    (local.set $errno (call $dispatch (i32.const 100) (i32.const 6) (i32.const 200) (i32.const 4) (i32.const 64)))
    (if (i32.load (i32.const 64)) (then
      (drop (call $response (i32.load (i32.const 64)) (i32.const 65536) (i32.load (i32.const 68))))))
    (call $say (i32.const 1) (i32.const 65536) (i32.load (i32.const 68)))
    (call $exit (local.get $errno)))
  (func (export "trap") unreachable)
  (func (export "call") (call $call (i32.const 0x65)))
  (func (export "call-eat") (call $call (i32.const 0x45)))
  (func (export "call-spin") (call $call (i32.const 0x53)))
  (func (export "call-fail") (call $call (i32.const 0x46))))
