;; Integer functions of CPU kernels: nothing traps, x / 0 and x mod 0 are 0.

(func $div_s_i32 (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (if (i32.eq (local.get $b) (i32.const -1))
    (then (return (i32.sub (i32.const 0) (local.get $a)))))
  (i32.div_s (local.get $a) (local.get $b)))

(func $div_u_i32 (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.div_u (local.get $a) (local.get $b)))

(func $fmod_s_i32 (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.rem_s (local.get $a) (local.get $b)))

(func $fmod_u_i32 (param $a i32) (param $b i32) (result i32)
  (if (i32.eqz (local.get $b)) (then (return (i32.const 0))))
  (i32.rem_u (local.get $a) (local.get $b)))

;; The remainder with the divisor's sign.
(func $mod_s_i32 (param $a i32) (param $b i32) (result i32)
  (local $r i32)
  (local.set $r (call $fmod_s_i32 (local.get $a) (local.get $b)))
  (select (i32.add (local.get $r) (local.get $b)) (local.get $r)
    (i32.and (i32.ne (local.get $r) (i32.const 0))
      (i32.lt_s (i32.xor (local.get $r) (local.get $b)) (i32.const 0)))))

(func $min_s_i32 (param $a i32) (param $b i32) (result i32)
  (select (local.get $a) (local.get $b) (i32.lt_s (local.get $a) (local.get $b))))

(func $min_u_i32 (param $a i32) (param $b i32) (result i32)
  (select (local.get $a) (local.get $b) (i32.lt_u (local.get $a) (local.get $b))))

(func $max_s_i32 (param $a i32) (param $b i32) (result i32)
  (select (local.get $a) (local.get $b) (i32.gt_s (local.get $a) (local.get $b))))

(func $max_u_i32 (param $a i32) (param $b i32) (result i32)
  (select (local.get $a) (local.get $b) (i32.gt_u (local.get $a) (local.get $b))))

(func $abs_i32 (param $a i32) (result i32)
  (select (i32.sub (i32.const 0) (local.get $a)) (local.get $a)
    (i32.lt_s (local.get $a) (i32.const 0))))

(func $sign_s_i32 (param $a i32) (result i32)
  (i32.or (i32.shr_s (local.get $a) (i32.const 31))
    (i32.shr_u (i32.sub (i32.const 0) (local.get $a)) (i32.const 31))))

(func $sign_u_i32 (param $a i32) (result i32)
  (select (i32.const 1) (i32.const 0) (i32.ne (local.get $a) (i32.const 0))))

;; Square and multiply; of a negative exponent only 1 and -1 keep anything.
(func $pow_s_i32 (param $a i32) (param $b i32) (result i32)
  (if (result i32) (i32.ge_s (local.get $b) (i32.const 0))
    (then (call $pow_u_i32 (local.get $a) (local.get $b)))
    (else
      (if (result i32) (i32.eq (local.get $a) (i32.const 1))
        (then (i32.const 1))
        (else (select
          (select (i32.const -1) (i32.const 1)
            (i32.ne (i32.and (local.get $b) (i32.const 1)) (i32.const 0)))
          (i32.const 0) (i32.eq (local.get $a) (i32.const -1))))))))

(func $pow_u_i32 (param $a i32) (param $b i32) (result i32)
  (local $y i32)
  (local.set $y (i32.const 1))
  (block $done (loop $next
    (br_if $done (i32.eqz (local.get $b)))
    (if (i32.ne (i32.and (local.get $b) (i32.const 1)) (i32.const 0))
      (then (local.set $y (i32.mul (local.get $y) (local.get $a)))))
    (local.set $a (i32.mul (local.get $a) (local.get $a)))
    (local.set $b (i32.shr_u (local.get $b) (i32.const 1)))
    (br $next)))
  (local.get $y))

(func $div_s_i64 (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (if (i64.eq (local.get $b) (i64.const -1))
    (then (return (i64.sub (i64.const 0) (local.get $a)))))
  (i64.div_s (local.get $a) (local.get $b)))

(func $div_u_i64 (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.div_u (local.get $a) (local.get $b)))

(func $fmod_s_i64 (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.rem_s (local.get $a) (local.get $b)))

(func $fmod_u_i64 (param $a i64) (param $b i64) (result i64)
  (if (i64.eqz (local.get $b)) (then (return (i64.const 0))))
  (i64.rem_u (local.get $a) (local.get $b)))

;; The remainder with the divisor's sign.
(func $mod_s_i64 (param $a i64) (param $b i64) (result i64)
  (local $r i64)
  (local.set $r (call $fmod_s_i64 (local.get $a) (local.get $b)))
  (select (i64.add (local.get $r) (local.get $b)) (local.get $r)
    (i32.and (i64.ne (local.get $r) (i64.const 0))
      (i64.lt_s (i64.xor (local.get $r) (local.get $b)) (i64.const 0)))))

(func $min_s_i64 (param $a i64) (param $b i64) (result i64)
  (select (local.get $a) (local.get $b) (i64.lt_s (local.get $a) (local.get $b))))

(func $min_u_i64 (param $a i64) (param $b i64) (result i64)
  (select (local.get $a) (local.get $b) (i64.lt_u (local.get $a) (local.get $b))))

(func $max_s_i64 (param $a i64) (param $b i64) (result i64)
  (select (local.get $a) (local.get $b) (i64.gt_s (local.get $a) (local.get $b))))

(func $max_u_i64 (param $a i64) (param $b i64) (result i64)
  (select (local.get $a) (local.get $b) (i64.gt_u (local.get $a) (local.get $b))))

(func $abs_i64 (param $a i64) (result i64)
  (select (i64.sub (i64.const 0) (local.get $a)) (local.get $a)
    (i64.lt_s (local.get $a) (i64.const 0))))

(func $sign_s_i64 (param $a i64) (result i64)
  (i64.or (i64.shr_s (local.get $a) (i64.const 63))
    (i64.shr_u (i64.sub (i64.const 0) (local.get $a)) (i64.const 63))))

(func $sign_u_i64 (param $a i64) (result i64)
  (select (i64.const 1) (i64.const 0) (i64.ne (local.get $a) (i64.const 0))))

;; Square and multiply; of a negative exponent only 1 and -1 keep anything.
(func $pow_s_i64 (param $a i64) (param $b i64) (result i64)
  (if (result i64) (i64.ge_s (local.get $b) (i64.const 0))
    (then (call $pow_u_i64 (local.get $a) (local.get $b)))
    (else
      (if (result i64) (i64.eq (local.get $a) (i64.const 1))
        (then (i64.const 1))
        (else (select
          (select (i64.const -1) (i64.const 1)
            (i64.ne (i64.and (local.get $b) (i64.const 1)) (i64.const 0)))
          (i64.const 0) (i64.eq (local.get $a) (i64.const -1))))))))

(func $pow_u_i64 (param $a i64) (param $b i64) (result i64)
  (local $y i64)
  (local.set $y (i64.const 1))
  (block $done (loop $next
    (br_if $done (i64.eqz (local.get $b)))
    (if (i64.ne (i64.and (local.get $b) (i64.const 1)) (i64.const 0))
      (then (local.set $y (i64.mul (local.get $y) (local.get $a)))))
    (local.set $a (i64.mul (local.get $a) (local.get $a)))
    (local.set $b (i64.shr_u (local.get $b) (i64.const 1)))
    (br $next)))
  (local.get $y))
