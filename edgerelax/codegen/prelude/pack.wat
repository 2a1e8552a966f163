;; Narrow floats: bits in the low end of each i32 lane, values as f32 lanes. Rounding is to nearest, ties
;; to even, by integer addition to the bits below the last kept one.

;; The bits moved to where f32 has them, and the exponent by a product, which subnormals pass as well.
(func $er_decode_f16_v4 (param $bits v128) (result v128) (local $size v128)
  (local.set $size (v128.and (local.get $bits) (i32x4.splat (i32.const 0x7fff))))
  (v128.or
    (i32x4.shl (v128.and (local.get $bits) (i32x4.splat (i32.const 0x8000))) (i32.const 16))
    (v128.or
      (f32x4.mul
        (i32x4.shl (local.get $size) (i32.const 13))
        (f32x4.splat (f32.const 0x1p112)))
      (v128.and
        (i32x4.gt_s (local.get $size) (i32x4.splat (i32.const 0x7bff)))
        (i32x4.splat (i32.const 0x7f800000))))))

(func $er_encode_f16_v4 (param $x v128) (result v128) (local $size v128) (local $r v128)
  (local.set $size (v128.and (local.get $x) (i32x4.splat (i32.const 0x7fffffff))))
  (local.set $r (call $er_round_bits (local.get $size) (i32.const 13) (i32.const 0x38000000)))
  (local.set $r (v128.bitselect
    (i32x4.trunc_sat_f32x4_u (f32x4.nearest
      (f32x4.mul (local.get $size) (f32x4.splat (f32.const 0x1p24)))))
    (local.get $r)
    (i32x4.lt_s (local.get $size) (i32x4.splat (i32.const 0x38800000)))))
  (local.set $r (v128.bitselect
    (i32x4.splat (i32.const 0x7c00))
    (local.get $r)
    (i32x4.ge_s (local.get $size) (i32x4.splat (i32.const 0x477ff000)))))
  (local.set $r (v128.bitselect
    (i32x4.splat (i32.const 0x7e00))
    (local.get $r)
    (i32x4.gt_s (local.get $size) (i32x4.splat (i32.const 0x7f800000)))))
  (v128.or (local.get $r)
    (v128.and (i32x4.shr_u (local.get $x) (i32.const 16)) (i32x4.splat (i32.const 0x8000)))))

;; The bits of a magnitude without its `drop` lowest, rounded, and its exponent moved by `lift`.
(func $er_round_bits (param $size v128) (param $drop i32) (param $lift i32) (result v128)
  (i32x4.shr_u
    (i32x4.add
      (i32x4.sub (local.get $size) (i32x4.splat (local.get $lift)))
      (i32x4.add
        (v128.and (i32x4.shr_u (local.get $size) (local.get $drop)) (i32x4.splat (i32.const 1)))
        (i32x4.splat (i32.sub
          (i32.shl (i32.const 1) (i32.sub (local.get $drop) (i32.const 1))) (i32.const 1)))))
    (local.get $drop)))

(func $er_round_f16_v4 (param $x v128) (result v128)
  (call $er_decode_f16_v4 (call $er_encode_f16_v4 (local.get $x))))

(func $er_decode_bf16_v4 (param $bits v128) (result v128)
  (i32x4.shl (local.get $bits) (i32.const 16)))

(func $er_encode_bf16_v4 (param $x v128) (result v128) (local $size v128)
  (local.set $size (v128.and (local.get $x) (i32x4.splat (i32.const 0x7fffffff))))
  (v128.or
    (v128.and (i32x4.shr_u (local.get $x) (i32.const 16)) (i32x4.splat (i32.const 0x8000)))
    (v128.bitselect
      (i32x4.splat (i32.const 0x7fc0))
      (call $er_round_bits (local.get $size) (i32.const 16) (i32.const 0))
      (i32x4.gt_s (local.get $size) (i32x4.splat (i32.const 0x7f800000))))))

(func $er_round_bf16_v4 (param $x v128) (result v128)
  (call $er_decode_bf16_v4 (call $er_encode_bf16_v4 (local.get $x))))

;; An f64 to f32, to odd where inexact, so that a second rounding to fewer bits is right.
(func $er_demote_odd (param $x f64) (result f32) (local $y f32) (local $bits i32)
  (local.set $y (f32.demote_f64 (local.get $x)))
  (local.set $bits (i32.reinterpret_f32 (local.get $y)))
  (if (f64.ne (f64.promote_f32 (local.get $y)) (local.get $x)) (then
    (if (f64.gt (f64.abs (f64.promote_f32 (local.get $y))) (f64.abs (local.get $x)))
      (then (local.set $bits (i32.sub (local.get $bits) (i32.const 1)))))
    (if (f64.eq (local.get $x) (local.get $x))
      (then (local.set $bits (i32.or (local.get $bits) (i32.const 1)))))))
  (f32.reinterpret_i32 (local.get $bits)))

;; 8-bit floats with `mantissa` bits of fraction; `tiny` is the least subnormal, `lift` moves the
;; exponent. Infinities and NaNs are the callers' business.
(func $er_decode_f8 (param $bits v128) (param $mantissa i32) (param $lift i32) (param $tiny f32)
  (result v128) (local $size v128)
  (local.set $size (v128.and (local.get $bits) (i32x4.splat (i32.const 127))))
  (v128.or
    (i32x4.shl (v128.and (local.get $bits) (i32x4.splat (i32.const 128))) (i32.const 24))
    (v128.bitselect
      (f32x4.mul (f32x4.convert_i32x4_s (local.get $size)) (f32x4.splat (local.get $tiny)))
      (i32x4.add
        (i32x4.shl (local.get $size) (i32.sub (i32.const 23) (local.get $mantissa)))
        (i32x4.splat (local.get $lift)))
      (i32x4.eq
        (i32x4.shr_u (local.get $size) (local.get $mantissa)) (i32x4.splat (i32.const 0))))))

(func $er_encode_f8 (param $x v128) (param $mantissa i32) (param $lift i32) (param $least i32)
  (param $scale f32) (result v128) (local $size v128)
  (local.set $size (v128.and (local.get $x) (i32x4.splat (i32.const 0x7fffffff))))
  (v128.bitselect
    (i32x4.trunc_sat_f32x4_u (f32x4.nearest
      (f32x4.mul (local.get $size) (f32x4.splat (local.get $scale)))))
    (call $er_round_bits
      (local.get $size) (i32.sub (i32.const 23) (local.get $mantissa)) (local.get $lift))
    (i32x4.lt_s (local.get $size) (i32x4.splat (local.get $least)))))

;; The code, but `special` where |x| has at least the bits `over`, as every NaN has if those are of a
;; finite number.
(func $er_finish_f8 (param $x v128) (param $code v128) (param $over i32) (param $special i32)
  (result v128) (local $size v128)
  (local.set $size (v128.and (local.get $x) (i32x4.splat (i32.const 0x7fffffff))))
  (v128.bitselect
    (i32x4.splat (local.get $special))
    (local.get $code)
    (i32x4.ge_s (local.get $size) (i32x4.splat (local.get $over)))))

(func $er_sign_f8 (param $x v128) (result v128)
  (v128.and (i32x4.shr_u (local.get $x) (i32.const 24)) (i32x4.splat (i32.const 128))))

(func $er_nan_where (param $value v128) (param $mask v128) (result v128)
  (v128.bitselect (f32x4.splat (f32.const nan)) (local.get $value) (local.get $mask)))

(func $er_decode_f8e4m3fn_v4 (param $bits v128) (result v128)
  (call $er_nan_where
    (call $er_decode_f8
      (local.get $bits) (i32.const 3) (i32.const 0x3c000000) (f32.const 0x1p-9))
    (i32x4.eq
      (v128.and (local.get $bits) (i32x4.splat (i32.const 127))) (i32x4.splat (i32.const 127)))))

(func $er_encode_f8e4m3fn_v4 (param $x v128) (result v128)
  (v128.or (call $er_sign_f8 (local.get $x))
    (call $er_finish_f8 (local.get $x)
      (call $er_encode_f8 (local.get $x)
        (i32.const 3) (i32.const 0x3c000000) (i32.const 0x3c800000) (f32.const 0x1p9))
      (i32.const 0x43e80001) (i32.const 127))))

(func $er_decode_f8e4m3fnuz_v4 (param $bits v128) (result v128)
  (call $er_nan_where
    (call $er_decode_f8
      (local.get $bits) (i32.const 3) (i32.const 0x3b800000) (f32.const 0x1p-10))
    (i32x4.eq (local.get $bits) (i32x4.splat (i32.const 128)))))

(func $er_encode_f8e4m3fnuz_v4 (param $x v128) (result v128)
  (call $er_finish_f8 (local.get $x)
    (call $er_signed_f8 (local.get $x) (call $er_encode_f8 (local.get $x)
      (i32.const 3) (i32.const 0x3b800000) (i32.const 0x3c000000) (f32.const 0x1p10)))
    (i32.const 0x43780000) (i32.const 128)))

;; With the sign of x, except for zero.
(func $er_signed_f8 (param $x v128) (param $code v128) (result v128)
  (v128.bitselect
    (local.get $code)
    (v128.or (local.get $code) (call $er_sign_f8 (local.get $x)))
    (i32x4.eq (local.get $code) (i32x4.splat (i32.const 0)))))

(func $er_decode_f8e5m2_v4 (param $bits v128) (result v128)
  (call $er_decode_f16_v4 (i32x4.shl (local.get $bits) (i32.const 8))))

(func $er_encode_f8e5m2_v4 (param $x v128) (result v128)
  (v128.or (call $er_sign_f8 (local.get $x))
    (call $er_finish_f8 (local.get $x)
      (call $er_finish_f8 (local.get $x)
        (call $er_encode_f8 (local.get $x)
          (i32.const 2) (i32.const 0x38000000) (i32.const 0x38800000) (f32.const 0x1p16))
        (i32.const 0x47700000) (i32.const 124))
      (i32.const 0x7f800001) (i32.const 126))))

(func $er_decode_f8e5m2fnuz_v4 (param $bits v128) (result v128)
  (call $er_nan_where
    (call $er_decode_f8
      (local.get $bits) (i32.const 2) (i32.const 0x37800000) (f32.const 0x1p-17))
    (i32x4.eq (local.get $bits) (i32x4.splat (i32.const 128)))))

(func $er_encode_f8e5m2fnuz_v4 (param $x v128) (result v128)
  (call $er_finish_f8 (local.get $x)
    (call $er_signed_f8 (local.get $x) (call $er_encode_f8 (local.get $x)
      (i32.const 2) (i32.const 0x37800000) (i32.const 0x38000000) (f32.const 0x1p17)))
    (i32.const 0x47700000) (i32.const 128)))

(func $er_round_f8e4m3fn_v4 (param $x v128) (result v128)
  (call $er_decode_f8e4m3fn_v4 (call $er_encode_f8e4m3fn_v4 (local.get $x))))

(func $er_round_f8e4m3fnuz_v4 (param $x v128) (result v128)
  (call $er_decode_f8e4m3fnuz_v4 (call $er_encode_f8e4m3fnuz_v4 (local.get $x))))

(func $er_round_f8e5m2_v4 (param $x v128) (result v128)
  (call $er_decode_f8e5m2_v4 (call $er_encode_f8e5m2_v4 (local.get $x))))

(func $er_round_f8e5m2fnuz_v4 (param $x v128) (result v128)
  (call $er_decode_f8e5m2fnuz_v4 (call $er_encode_f8e5m2fnuz_v4 (local.get $x))))

;; Without infinities and NaNs: what is out of range becomes the greatest, NaN a zero of other sign.
(func $er_decode_f4e2m1_v4 (param $bits v128) (result v128)
  (call $er_decode_f8
    (v128.or
      (v128.and (local.get $bits) (i32x4.splat (i32.const 7)))
      (i32x4.shl (v128.and (local.get $bits) (i32x4.splat (i32.const 8))) (i32.const 4)))
    (i32.const 1) (i32.const 0x3f000000) (f32.const 0.5)))

(func $er_encode_f4e2m1_v4 (param $x v128) (result v128) (local $sign v128)
  (local.set $sign (v128.and
    (i32x4.shr_u (local.get $x) (i32.const 28)) (i32x4.splat (i32.const 8))))
  (v128.bitselect
    (v128.or (local.get $sign)
      (call $er_finish_f8 (local.get $x)
        (call $er_encode_f8 (local.get $x)
          (i32.const 1) (i32.const 0x3f000000) (i32.const 0x3f800000) (f32.const 2))
        (i32.const 0x40c00000) (i32.const 7)))
    (v128.xor (local.get $sign) (i32x4.splat (i32.const 8)))
    (f32x4.eq (local.get $x) (local.get $x))))

(func $er_round_f4e2m1_v4 (param $x v128) (result v128)
  (call $er_decode_f4e2m1_v4 (call $er_encode_f4e2m1_v4 (local.get $x))))

;; Powers of two from 2^-127 on: an exponent and nothing else. Rounded up.
(func $er_decode_f8e8m0_v4 (param $bits v128) (result v128)
  (call $er_nan_where
    (v128.bitselect
      (i32x4.splat (i32.const 0x400000))
      (i32x4.shl (local.get $bits) (i32.const 23))
      (i32x4.eq (local.get $bits) (i32x4.splat (i32.const 0))))
    (i32x4.eq (local.get $bits) (i32x4.splat (i32.const 255)))))

(func $er_encode_f8e8m0_v4 (param $x v128) (result v128)
  (v128.andnot
    (i32x4.min_u (i32x4.splat (i32.const 255))
      (i32x4.sub
        (i32x4.shr_u (local.get $x) (i32.const 23))
        (i32x4.ne (v128.and (local.get $x) (i32x4.splat (i32.const 0x7fffff)))
          (i32x4.splat (i32.const 0)))))
    (v128.or
      (i32x4.le_u (local.get $x) (i32x4.splat (i32.const 0x400000)))
      (i32x4.eq (local.get $x) (i32x4.splat (i32.const 0x80000000))))))

(func $er_round_f8e8m0_v4 (param $x v128) (result v128)
  (call $er_decode_f8e8m0_v4 (call $er_encode_f8e8m0_v4 (local.get $x))))
