;; Integer functions with the meaning of ir/functions.py: none traps.

;; x / 0 = 0; the quotient that overflows wraps.
(func $er_i32_div (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (if (i32.eq (local.get $b) (i32.const -1))
    (then (return (i32.sub (i32.const 0) (local.get $a)))))
  (i32.div_s (local.get $a) (local.get $b)))

(func $er_u32_div (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.div_u (local.get $a) (local.get $b)))

;; The sign of the dividend; x % 0 = 0.
(func $er_i32_fmod (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.rem_s (local.get $a) (local.get $b)))

(func $er_u32_mod (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.rem_u (local.get $a) (local.get $b)))

;; The sign of the divisor.
(func $er_i32_mod (param $a i32) (param $b i32) (result i32) (local $r i32)
  (local.set $r (call $er_i32_fmod (local.get $a) (local.get $b)))
  (select
    (i32.add (local.get $r) (local.get $b))
    (local.get $r)
    (i32.and
      (i32.ne (local.get $r) (i32.const 0))
      (i32.lt_s (i32.xor (local.get $r) (local.get $b)) (i32.const 0)))))

(func $er_u32_pow (param $a i32) (param $b i32) (result i32) (local $product i32)
  (local.set $product (i32.const 1))
  (block $done (loop $more
    (br_if $done (i32.eqz (local.get $b)))
    (if (i32.and (local.get $b) (i32.const 1))
      (then (local.set $product (i32.mul (local.get $product) (local.get $a)))))
    (local.set $a (i32.mul (local.get $a) (local.get $a)))
    (local.set $b (i32.shr_u (local.get $b) (i32.const 1)))
    (br $more)))
  (local.get $product))

;; A negative exponent gives 0 except for the bases 1 and -1.
(func $er_i32_pow (param $a i32) (param $b i32) (result i32)
  (if (i32.ge_s (local.get $b) (i32.const 0))
    (then (return (call $er_u32_pow (local.get $a) (local.get $b)))))
  (if (i32.eq (local.get $a) (i32.const 1)) (then (return (i32.const 1))))
  (if (i32.ne (local.get $a) (i32.const -1)) (then (return (i32.const 0))))
  (i32.sub (i32.const 1) (i32.shl (i32.and (local.get $b) (i32.const 1)) (i32.const 1))))

;; The two low bytes, as signed integers, made two of 16 bits.
(func $er_i32_widen_pairs (param $a i32) (result i32)
  (i32.or
    (i32.and (i32.extend8_s (local.get $a)) (i32.const 0xffff))
    (i32.shl (i32.extend8_s (i32.shr_u (local.get $a) (i32.const 8))) (i32.const 16))))

;; Products of the four bytes, as signed integers, added up.
(func $er_i32_dot_quads (param $a i32) (param $b i32) (result i32) (local $pairs v128)
  (local.set $pairs (i32x4.extadd_pairwise_i16x8_s
    (i16x8.extmul_low_i8x16_s (i32x4.splat (local.get $a)) (i32x4.splat (local.get $b)))))
  (i32.add (i32x4.extract_lane 0 (local.get $pairs)) (i32x4.extract_lane 1 (local.get $pairs))))

;; x / 0 = 0; the quotient that overflows wraps.
(func $er_i64_div (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (if (i64.eq (local.get $b) (i64.const -1))
    (then (return (i64.sub (i64.const 0) (local.get $a)))))
  (i64.div_s (local.get $a) (local.get $b)))

(func $er_u64_div (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.div_u (local.get $a) (local.get $b)))

;; The sign of the dividend; x % 0 = 0.
(func $er_i64_fmod (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.rem_s (local.get $a) (local.get $b)))

(func $er_u64_mod (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.rem_u (local.get $a) (local.get $b)))

;; The sign of the divisor.
(func $er_i64_mod (param $a i64) (param $b i64) (result i64) (local $r i64)
  (local.set $r (call $er_i64_fmod (local.get $a) (local.get $b)))
  (select
    (i64.add (local.get $r) (local.get $b))
    (local.get $r)
    (i32.and
      (i64.ne (local.get $r) (i64.const 0))
      (i64.lt_s (i64.xor (local.get $r) (local.get $b)) (i64.const 0)))))

(func $er_u64_pow (param $a i64) (param $b i64) (result i64) (local $product i64)
  (local.set $product (i64.const 1))
  (block $done (loop $more
    (br_if $done (i64.eqz (local.get $b)))
    (if (i32.and (i32.wrap_i64 (local.get $b)) (i32.const 1))
      (then (local.set $product (i64.mul (local.get $product) (local.get $a)))))
    (local.set $a (i64.mul (local.get $a) (local.get $a)))
    (local.set $b (i64.shr_u (local.get $b) (i64.const 1)))
    (br $more)))
  (local.get $product))

;; A negative exponent gives 0 except for the bases 1 and -1.
(func $er_i64_pow (param $a i64) (param $b i64) (result i64)
  (if (i64.ge_s (local.get $b) (i64.const 0))
    (then (return (call $er_u64_pow (local.get $a) (local.get $b)))))
  (if (i64.eq (local.get $a) (i64.const 1)) (then (return (i64.const 1))))
  (if (i64.ne (local.get $a) (i64.const -1)) (then (return (i64.const 0))))
  (i64.sub (i64.const 1) (i64.shl (i64.and (local.get $b) (i64.const 1)) (i64.const 1))))
