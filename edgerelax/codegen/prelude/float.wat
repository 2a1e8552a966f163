;; Float functions of four f32 lanes, with the meaning of ir/functions.py. A scalar is one lane.
;; "ulp" is the largest error against the rounded exact result (tests/codegen measure it).

;; e^x: x = n ln2 + r, a polynomial in r, then 2^n in two steps so that n may pass the exponents.
;; 2 ulp; infinities, NaN, overflow and subnormal results as in numpy.
(func $er_exp_v4 (param $x v128) (result v128) (local $n v128) (local $r v128) (local $half v128)
  (local.set $x (f32x4.max (f32x4.splat (f32.const -104))
    (f32x4.min (f32x4.splat (f32.const 89)) (local.get $x))))
  (local.set $n (f32x4.nearest
    (f32x4.mul (local.get $x) (f32x4.splat (f32.const 1.4426950408889634)))))
  ;; ln2 in two parts; the first has few bits, so that its product with n is exact
  (local.set $r (f32x4.sub
    (f32x4.sub (local.get $x)
      (f32x4.mul (local.get $n) (f32x4.splat (f32.const 0.693359375))))
    (f32x4.mul (local.get $n) (f32x4.splat (f32.const -0.00021219444005469057)))))
  (local.set $n (i32x4.trunc_sat_f32x4_s (local.get $n)))
  (local.set $half (i32x4.shr_s (local.get $n) (i32.const 1)))
  (f32x4.splat (f32.const 0.001381446490995586))
  local.get $r f32x4.mul f32.const 0.008368780836462975 f32x4.splat f32x4.add
  local.get $r f32x4.mul f32.const 0.04166839271783829 f32x4.splat f32x4.add
  local.get $r f32x4.mul f32.const 0.1666651964187622 f32x4.splat f32x4.add
  local.get $r f32x4.mul f32.const 0.4999999403953552 f32x4.splat f32x4.add
  local.get $r f32x4.mul local.get $r f32x4.mul
  local.get $r f32x4.add
  f32.const 1 f32x4.splat f32x4.add
  (f32x4.mul (call $er_power_of_two (local.get $half)))
  (f32x4.mul (call $er_power_of_two (i32x4.sub (local.get $n) (local.get $half)))))

;; 2^n for -126 <= n <= 127.
(func $er_power_of_two (param $n v128) (result v128)
  (i32x4.shl (i32x4.add (local.get $n) (i32x4.splat (i32.const 127))) (i32.const 23)))

;; ln x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)).
;; 2 ulp; ln 0 = -inf, NaN below.
(func $er_log_v4 (param $x v128) (result v128)
  (local $tiny v128) (local $bits v128) (local $e v128) (local $m v128) (local $s v128)
  (local $z v128)
  (local.set $tiny (f32x4.lt (local.get $x) (f32x4.splat (f32.const 0x1p-126))))
  (local.set $bits (v128.bitselect
    (f32x4.mul (local.get $x) (f32x4.splat (f32.const 0x1p23)))
    (local.get $x) (local.get $tiny)))
  (local.set $e (i32x4.shr_s
    (i32x4.sub (local.get $bits) (i32x4.splat (i32.const 0x3f3504f3))) (i32.const 23)))
  (local.set $m (i32x4.sub (local.get $bits) (i32x4.shl (local.get $e) (i32.const 23))))
  (local.set $e (f32x4.convert_i32x4_s (i32x4.sub (local.get $e)
    (v128.and (local.get $tiny) (i32x4.splat (i32.const 23))))))
  (local.set $s (f32x4.div
    (f32x4.sub (local.get $m) (f32x4.splat (f32.const 1)))
    (f32x4.add (local.get $m) (f32x4.splat (f32.const 1)))))
  (local.set $z (f32x4.mul (local.get $s) (local.get $s)))
  (local.set $s (f32x4.add (local.get $s) (local.get $s)))
  (f32x4.splat (f32.const 0.11791785806417465))
  local.get $z f32x4.mul f32.const 0.14268618822097778 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.20000168681144714 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.3333333134651184 f32x4.splat f32x4.add
  local.get $z f32x4.mul local.get $s f32x4.mul
  local.get $s f32x4.add
  (f32x4.add (f32x4.mul (local.get $e) (f32x4.splat (f32.const 0.6931471805599453))))
  (local.set $m)
  (local.set $m (v128.bitselect (f32x4.splat (f32.const inf)) (local.get $m)
    (f32x4.eq (local.get $x) (f32x4.splat (f32.const inf)))))
  (local.set $m (v128.bitselect (local.get $m) (f32x4.splat (f32.const nan))
    (f32x4.ge (local.get $x) (f32x4.splat (f32.const 0)))))
  (v128.bitselect (f32x4.splat (f32.const -inf)) (local.get $m)
    (f32x4.eq (local.get $x) (f32x4.splat (f32.const 0)))))

;; The magnitude of x with the sign of y.
(func $er_copysign_v4 (param $x v128) (param $y v128) (result v128)
  (v128.bitselect (local.get $y) (local.get $x) (i32x4.splat (i32.const 0x80000000))))

;; x P(x^2) / Q(x^2) up to 9.02, where the result is 1. 6 ulp.
(func $er_tanh_v4 (param $x v128) (result v128) (local $c v128) (local $z v128)
  (local.set $c (f32x4.max (f32x4.splat (f32.const -9.02))
    (f32x4.min (f32x4.splat (f32.const 9.02)) (local.get $x))))
  (local.set $z (f32x4.mul (local.get $c) (local.get $c)))
  (f32x4.splat (f32.const -8.43601379615748e-14))
  local.get $z f32x4.mul f32.const 5.257763668886639e-11 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const -2.01839291946726e-08 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 1.1144245036120992e-05 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.0031030001118779182 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.1308315545320511 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 1 f32x4.splat f32x4.add
  local.get $c f32x4.mul
  (f32x4.splat (f32.const 0.0002544749586377293))
  local.get $z f32x4.mul f32.const 0.02449137717485428 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.4641648232936859 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 1 f32x4.splat f32x4.add
  f32x4.div
  (local.set $z)
  (v128.bitselect (call $er_copysign_v4 (f32x4.splat (f32.const 1)) (local.get $x)) (local.get $z)
    (f32x4.ge (f32x4.abs (local.get $x)) (f32x4.splat (f32.const 9.02)))))

;; x P(x^2) / Q(x^2) up to 3.93, where the result is 1. 6 ulp.
(func $er_erf_v4 (param $x v128) (result v128) (local $c v128) (local $z v128)
  (local.set $c (f32x4.max (f32x4.splat (f32.const -3.93))
    (f32x4.min (f32x4.splat (f32.const 3.93)) (local.get $x))))
  (local.set $z (f32x4.mul (local.get $c) (local.get $c)))
  (f32x4.splat (f32.const 2.041971583821578e-06))
  local.get $z f32x4.mul f32.const 0.00028480871696956456 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.003779610386118293 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.052790287882089615 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.19078384339809418 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 1.1283791065216064 f32x4.splat f32x4.add
  local.get $c f32x4.mul
  (f32x4.splat (f32.const 3.800409103860147e-05))
  local.get $z f32x4.mul f32.const 0.0011652131797745824 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.014997439458966255 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.11425752937793732 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 0.5024105310440063 f32x4.splat f32x4.add
  local.get $z f32x4.mul f32.const 1 f32x4.splat f32x4.add
  f32x4.div
  (local.set $z)
  (v128.bitselect (call $er_copysign_v4 (f32x4.splat (f32.const 1)) (local.get $x)) (local.get $z)
    (f32x4.ge (f32x4.abs (local.get $x)) (f32x4.splat (f32.const 3.93)))))

;; 3 ulp.
(func $er_sigmoid_v4 (param $x v128) (result v128)
  (f32x4.div (f32x4.splat (f32.const 1))
    (f32x4.add (f32x4.splat (f32.const 1)) (call $er_exp_v4 (f32x4.neg (local.get $x))))))

(func $er_sign_v4 (param $x v128) (result v128) (local $one v128)
  (local.set $one (f32x4.splat (f32.const 1)))
  (v128.bitselect
    (f32x4.sub
      (v128.and (local.get $one) (f32x4.gt (local.get $x) (f32x4.splat (f32.const 0))))
      (v128.and (local.get $one) (f32x4.lt (local.get $x) (f32x4.splat (f32.const 0)))))
    (local.get $x)
    (f32x4.eq (local.get $x) (local.get $x))))

(func $er_sign_f64 (param $x f64) (result f64)
  (select
    (f64.convert_i32_s (i32.sub
      (f64.gt (local.get $x) (f64.const 0)) (f64.lt (local.get $x) (f64.const 0))))
    (local.get $x)
    (f64.eq (local.get $x) (local.get $x))))

(func $er_sigmoid_f64 (param $x f64) (result f64)
  (f64.div (f64.const 1) (f64.add (f64.const 1) (call $er_exp (f64.neg (local.get $x))))))

;; The remainder with the sign of the divisor.
(func $er_mod_f32 (param $x f32) (param $y f32) (result f32) (local $r f32)
  (local.set $r (call $er_fmodf (local.get $x) (local.get $y)))
  (if (f32.eq (local.get $r) (f32.const 0))
    (then (return (f32.copysign (f32.const 0) (local.get $y)))))
  (select
    (f32.add (local.get $r) (local.get $y))
    (local.get $r)
    (i32.ne (f32.lt (local.get $r) (f32.const 0)) (f32.lt (local.get $y) (f32.const 0)))))

;; The remainder with the sign of the divisor.
(func $er_mod_f64 (param $x f64) (param $y f64) (result f64) (local $r f64)
  (local.set $r (call $er_fmod (local.get $x) (local.get $y)))
  (if (f64.eq (local.get $r) (f64.const 0))
    (then (return (f64.copysign (f64.const 0) (local.get $y)))))
  (select
    (f64.add (local.get $r) (local.get $y))
    (local.get $r)
    (i32.ne (f64.lt (local.get $r) (f64.const 0)) (f64.lt (local.get $y) (f64.const 0)))))

;; The VM's says nothing of x < 1.
(func $er_acosh_f32 (param $x f32) (result f32)
  (select
    (f32.const nan)
    (call $er_acoshf (local.get $x))
    (f32.lt (local.get $x) (f32.const 1))))

;; The VM's says nothing of x < 1.
(func $er_acosh_f64 (param $x f64) (result f64)
  (select
    (f64.const nan)
    (call $er_acosh (local.get $x))
    (f64.lt (local.get $x) (f64.const 1))))
