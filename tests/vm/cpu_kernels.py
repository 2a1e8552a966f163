"""Hand-written cpu kernels."""

from functools import cache

import wasmtime

from edgerelax.hosts.instance import compile_kernels

COUNT = 7
ADD_ONE, ADD, SINE, TRAP, ACCUMULATE, COUNT_VISITS, OUTSIDE = range(COUNT)

_LOOP = """
  (func ${name} (param $a i32) (param $i i32) (param $end i32) (local $at i32)
    (block $out (loop $more
      (br_if $out (i32.ge_s (local.get $i) (local.get $end)))
      (local.set $at (i32.shl (local.get $i) (i32.const 2)))
      (f32.store (i32.add (i32.load offset={dst} (local.get $a)) (local.get $at)) {value})
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $more))))
"""


def _load(offset: int) -> str:
    return f"(f32.load (i32.add (i32.load offset={offset} (local.get $a)) (local.get $at)))"


_WAT = f"""
(module
  (import "env" "memory" (memory 0 65536))
  (import "env" "table" (table 0 funcref))
  (import "env" "base" (global $base i32))
  (import "env" "er_sinf" (func $sinf (param f32) (result f32)))
  (import "env" "stackSave" (func $stack (result i32)))
  (elem (global.get $base) $add_one $add $sine $trap $accumulate $count_visits $outside)
  {_LOOP.format(name="add_one", dst=4, value=f"(f32.add (f32.const 1) {_load(0)})")}
  {_LOOP.format(name="add", dst=8, value=f"(f32.add {_load(0)} {_load(4)})")}
  {_LOOP.format(name="sine", dst=4, value=f"(call $sinf {_load(0)})")}
  (func $trap (param i32 i32 i32) unreachable)
  (func $outside (param i32 i32 i32) (drop (i32.load (i32.const 0x7fffff00))))
  (func $accumulate (param $a i32) (param $i i32) (param $end i32) (local $at i32)
    (block $out (loop $more
      (br_if $out (i32.ge_s (local.get $i) (local.get $end)))
      (local.set $at (i32.add (i32.load (local.get $a)) (i32.shl (local.get $i) (i32.const 2))))
      (i32.store (local.get $at) (i32.add (i32.load (local.get $at))
        (i32.add (i32.mul (i32.const 100) (i32.load offset=8 (local.get $a)))
          (i32.load offset=12 (local.get $a)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $more))))
  ;; Adds 1 to each word, slowly. The scalar after the grid is the end of the caller's stack: where
  ;; it is not 0 all others trap.
  (func $count_visits (param $a i32) (param $i i32) (param $end i32) (local $at i32) (local $n i32)
    (if (i32.load offset=8 (local.get $a)) (then
      (if (i32.gt_u (call $stack) (i32.load offset=8 (local.get $a))) (then unreachable))))
    (block $out (loop $more
      (br_if $out (i32.ge_s (local.get $i) (local.get $end)))
      (local.set $at (i32.add (i32.load (local.get $a)) (i32.shl (local.get $i) (i32.const 2))))
      (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (i32.const 1)))
      (local.set $n (i32.const 1000))
      (loop $wait (br_if $wait (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $more)))))
"""


@cache
def wasm() -> bytes:
    return bytes(wasmtime.wat2wasm(_WAT))


@cache
def module() -> wasmtime.Module:
    return compile_kernels(wasm())
