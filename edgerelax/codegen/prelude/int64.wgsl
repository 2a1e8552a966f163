// 64-bit integers as vec2<u32>, low word first. i64 functions read the top bit as a sign.

// The 64-bit product of two words, from products of their halves.
fn er_mul_wide(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let mid2 = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
  return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (mid >> 16u) + (mid2 >> 16u));
}

fn er_i64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn er_u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return er_i64_add(a, b);
}

fn er_i64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn er_u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return er_i64_sub(a, b);
}

fn er_i64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = er_mul_wide(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}

fn er_u64_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return er_i64_mul(a, b);
}

fn er_i64_neg(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(0u - a.x, ~a.y + select(0u, 1u, a.x == 0u));
}

fn er_u64_neg(a: vec2<u32>) -> vec2<u32> {
  return er_i64_neg(a);
}

fn er_i64_is_negative(a: vec2<u32>) -> bool {
  return a.y >= 0x80000000u;
}

fn er_i64_abs(a: vec2<u32>) -> vec2<u32> {
  return select(a, er_i64_neg(a), er_i64_is_negative(a));
}

fn er_u64_abs(a: vec2<u32>) -> vec2<u32> {
  return a;
}

fn er_i64_to_bool(a: vec2<u32>) -> bool {
  return (a.x | a.y) != 0u;
}

fn er_i64_sign(a: vec2<u32>) -> vec2<u32> {
  let positive = vec2<u32>(select(0u, 1u, er_i64_to_bool(a)), 0u);
  return select(positive, vec2<u32>(0xffffffffu, 0xffffffffu), er_i64_is_negative(a));
}

fn er_u64_sign(a: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(select(0u, 1u, er_i64_to_bool(a)), 0u);
}

fn er_i64_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.x == b.x && a.y == b.y;
}

fn er_u64_eq(a: vec2<u32>, b: vec2<u32>) -> bool {
  return er_i64_eq(a, b);
}

fn er_i64_ne(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_i64_eq(a, b);
}

fn er_u64_ne(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_i64_eq(a, b);
}

fn er_u64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn er_u64_gt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return er_u64_lt(b, a);
}

fn er_u64_le(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_u64_lt(b, a);
}

fn er_u64_ge(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_u64_lt(a, b);
}

fn er_i64_lt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}

fn er_i64_gt(a: vec2<u32>, b: vec2<u32>) -> bool {
  return er_i64_lt(b, a);
}

fn er_i64_le(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_i64_lt(b, a);
}

fn er_i64_ge(a: vec2<u32>, b: vec2<u32>) -> bool {
  return !er_i64_lt(a, b);
}

fn er_i64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, er_i64_lt(b, a));
}

fn er_i64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, er_i64_lt(a, b));
}

fn er_u64_min(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, er_u64_lt(b, a));
}

fn er_u64_max(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, er_u64_lt(a, b));
}

// By n bits, n < 64.
fn er_shift_left(a: vec2<u32>, n: u32) -> vec2<u32> {
  let k = n & 31u;
  let near = vec2<u32>(a.x << k, (a.y << k) | ((a.x >> 1u) >> (31u - k)));
  return select(near, vec2<u32>(0u, a.x << k), n >= 32u);
}

// The same to the right; `fill` comes in at the top.
fn er_shift_right(a: vec2<u32>, n: u32, fill: u32) -> vec2<u32> {
  let k = n & 31u;
  let top = (a.y >> k) | ((fill << 1u) << (31u - k));
  let near = vec2<u32>((a.x >> k) | ((a.y << 1u) << (31u - k)), top);
  return select(near, vec2<u32>(top, fill), n >= 32u);
}

fn er_u64_shl(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(er_shift_left(a, b.x & 63u), vec2<u32>(0u, 0u), b.y != 0u || b.x >= 64u);
}

fn er_u64_shr(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(er_shift_right(a, b.x & 63u, 0u), vec2<u32>(0u, 0u), b.y != 0u || b.x >= 64u);
}

fn er_i64_shl(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return er_u64_shl(a, b);
}

fn er_i64_shr(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let fill = select(0u, 0xffffffffu, er_i64_is_negative(a));
  return select(er_shift_right(a, b.x & 63u, fill), vec2<u32>(0u, 0u), b.y != 0u || b.x >= 64u);
}

// Quotient and remainder, b not 0: 32-bit division if both fit, else long division by bits.
fn er_u64_divide(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if ((a.y | b.y) == 0u) {
    return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u);
  }
  var quotient = a;
  var rest = vec2<u32>(0u, 0u);
  for (var k: i32 = 0; k < 64; k++) {
    let carry = rest.y >> 31u;
    rest = vec2<u32>((rest.x << 1u) | (quotient.y >> 31u), (rest.y << 1u) | (rest.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (carry == 1u || !er_u64_lt(rest, b)) {
      rest = er_i64_sub(rest, b);
      quotient.x = quotient.x | 1u;
    }
  }
  return vec4<u32>(quotient.x, quotient.y, rest.x, rest.y);
}

fn er_u64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (!er_i64_to_bool(b)) {
    return vec2<u32>(0u, 0u);
  }
  return er_u64_divide(a, b).xy;
}

fn er_u64_fmod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (!er_i64_to_bool(b)) {
    return vec2<u32>(0u, 0u);
  }
  return er_u64_divide(a, b).zw;
}

fn er_u64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return er_u64_fmod(a, b);
}

fn er_i64_div(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let q = er_u64_div(er_i64_abs(a), er_i64_abs(b));
  return select(q, er_i64_neg(q), er_i64_is_negative(a) != er_i64_is_negative(b));
}

fn er_i64_fmod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = er_u64_fmod(er_i64_abs(a), er_i64_abs(b));
  return select(r, er_i64_neg(r), er_i64_is_negative(a));
}

fn er_i64_mod(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let r = er_i64_fmod(a, b);
  let fix = er_i64_to_bool(r) && er_i64_is_negative(r) != er_i64_is_negative(b);
  return select(r, er_i64_add(r, b), fix);
}

fn er_u64_pow(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  var square = a;
  var rest = b;
  var product = vec2<u32>(1u, 0u);
  while (er_i64_to_bool(rest)) {
    if ((rest.x & 1u) == 1u) {
      product = er_i64_mul(product, square);
    }
    square = er_i64_mul(square, square);
    rest = er_shift_right(rest, 1u, 0u);
  }
  return product;
}

fn er_i64_pow(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  if (!er_i64_is_negative(b)) {
    return er_u64_pow(a, b);
  }
  let one = vec2<u32>(1u, 0u);
  let minus = vec2<u32>(0xffffffffu, 0xffffffffu);
  let unit = select(one, minus, (b.x & 1u) == 1u);
  return select(select(vec2<u32>(0u, 0u), unit, er_i64_eq(a, minus)), one, er_i64_eq(a, one));
}

fn er_i32_to_i64(x: i32) -> vec2<u32> {
  return vec2<u32>(bitcast<u32>(x), select(0u, 0xffffffffu, x < 0));
}

fn er_i32_to_u64(x: i32) -> vec2<u32> {
  return er_i32_to_i64(x);
}

fn er_u32_to_i64(x: u32) -> vec2<u32> {
  return vec2<u32>(x, 0u);
}

fn er_u32_to_u64(x: u32) -> vec2<u32> {
  return vec2<u32>(x, 0u);
}

// The whole part of |x| < 2^64.
fn er_f32_magnitude(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let exponent = i32((bits >> 23u) & 255u) - 150;
  let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < -23) {
    return vec2<u32>(0u, 0u);
  }
  if (exponent < 0) {
    return er_shift_right(mantissa, u32(-exponent), 0u);
  }
  return er_shift_left(mantissa, u32(exponent) & 63u);
}

fn er_f32_to_u64(x: f32) -> vec2<u32> {
  if (er_isnan(x) || x <= 0.0f) {
    return vec2<u32>(0u, 0u);
  }
  if (x >= 18446744073709551616.0f) {
    return vec2<u32>(0xffffffffu, 0xffffffffu);
  }
  return er_f32_magnitude(x);
}

fn er_f32_to_i64(x: f32) -> vec2<u32> {
  if (er_isnan(x)) {
    return vec2<u32>(0u, 0u);
  }
  if (x >= 9223372036854775808.0f) {
    return vec2<u32>(0xffffffffu, 0x7fffffffu);
  }
  if (x <= -9223372036854775808.0f) {
    return vec2<u32>(0u, 0x80000000u);
  }
  let size = er_f32_magnitude(x);
  return select(size, er_i64_neg(size), x < 0.0f);
}

// Rounded to nearest even by hand: 24 bits, then a guard and a sticky bit.
fn er_u64_to_f32(a: vec2<u32>) -> f32 {
  if (a.y == 0u && a.x < 0x1000000u) {
    return f32(a.x);
  }
  let zeros = select(countLeadingZeros(a.y), 32u + countLeadingZeros(a.x), a.y == 0u);
  let left = er_shift_left(a, zeros);
  let mantissa = left.y >> 8u;
  let half = (left.y >> 7u) & 1u;
  let sticky = (left.y & 127u) | left.x;
  let up = half == 1u && (sticky != 0u || (mantissa & 1u) == 1u);
  let bits = ((190u - zeros) << 23u) + (mantissa - 0x800000u) + select(0u, 1u, up);
  return bitcast<f32>(bits);
}

fn er_i64_to_f32(a: vec2<u32>) -> f32 {
  let size = er_u64_to_f32(er_i64_abs(a));
  return select(size, -size, er_i64_is_negative(a));
}
