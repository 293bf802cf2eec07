;; A reactor that recurses until the native stack ends: its frames hold nothing in linear memory, so no
;; bounds check stops it first.
(module
  (memory (export "memory") 1)
  (func $deeper (param $depth i32) (result i32)
    (local $below i32)
    (local.set $below (call $deeper (i32.add (local.get $depth) (i32.const 1))))
    (i32.store (i32.const 1024) (i32.add (i32.load (i32.const 1024)) (local.get $depth)))
    (i32.add (local.get $below) (i32.load (i32.const 1024))))
  (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 2048))
  (func (export "cwasi_handle") (param i32 i32 i32) (result i32) (call $deeper (i32.const 1))))
