// 32-bit integer functions with the meaning of ir/functions.py: nothing is undefined, x / 0 is 0.
//
// Narrower types are computed in 32 bits and wrapped by the printer.

fn er_i32_div(a: I, b: I) -> I {
  let zero = b == I(0);
  return select(a / select(b, I(1), zero), I(0), zero);
}

fn er_u32_div(a: U, b: U) -> U {
  let zero = b == U(0u);
  return select(a / select(b, U(1u), zero), U(0u), zero);
}

// The sign of the divisor.
fn er_i32_mod(a: I, b: I) -> I {
  let r = er_i32_fmod(a, b);
  return select(r, r + b, (r != I(0)) & ((r ^ b) < I(0)));
}

// The sign of the dividend.
fn er_i32_fmod(a: I, b: I) -> I {
  let zero = b == I(0);
  return select(a % select(b, I(1), zero), I(0), zero);
}

fn er_u32_mod(a: U, b: U) -> U {
  let zero = b == U(0u);
  return select(a % select(b, U(1u), zero), U(0u), zero);
}

fn er_i32_shl(a: I, b: I, bits: i32) -> I {
  return select(a << (bitcast<U>(b) & U(31u)), I(0), b >= I(bits));
}

fn er_i32_shr(a: I, b: I, bits: i32) -> I {
  return select(a >> (bitcast<U>(b) & U(31u)), I(0), b >= I(bits));
}

fn er_u32_shl(a: U, b: U, bits: u32) -> U {
  return select(a << (b & U(31u)), U(0u), b >= U(bits));
}

fn er_u32_shr(a: U, b: U, bits: u32) -> U {
  return select(a >> (b & U(31u)), U(0u), b >= U(bits));
}

fn er_u32_pow(base: u32, exponent: u32) -> u32 {
  var square = base;
  var rest = exponent;
  var product = 1u;
  while (rest > 0u) {
    product = select(product, product * square, (rest & 1u) == 1u);
    square = square * square;
    rest = rest >> 1u;
  }
  return product;
}

fn er_i32_pow(base: i32, exponent: i32) -> i32 {
  if (exponent >= 0) {
    return bitcast<i32>(er_u32_pow(bitcast<u32>(base), bitcast<u32>(exponent)));
  }
  let unit = select(-1, 1, (exponent & 1) == 0);
  return select(select(0, unit, base == -1), 1, base == 1);
}

fn er_u32_sign(a: U) -> U {
  return min(a, U(1u));
}

fn er_u32_neg(a: U) -> U {
  return U(0u) - a;
}

// Drivers round the conversion of values of at least 2^31 in their own ways, but not that of i32. The
// bit that is lost to halving matters only as one that is not zero.
fn er_u32_to_f32(a: U) -> F {
  let half = bitcast<I>((a >> U(1u)) | (a & U(1u)));
  return select(F(bitcast<I>(a)), F(half) * F(2.0f), a >= U(0x80000000u));
}

// Products of the low and of the high halves, as signed 16-bit integers, added up.
fn er_i32_dot_pairs(a: I, b: I) -> I {
  let low = ((a << U(16u)) >> U(16u)) * ((b << U(16u)) >> U(16u));
  return low + (a >> U(16u)) * (b >> U(16u));
}

// Products of the four bytes, as signed integers, added up.
fn er_i32_dot_quads(a: i32, b: i32) -> i32 {
  return dot4I8Packed(bitcast<u32>(a), bitcast<u32>(b));
}

// The two low bytes, as signed integers, made two of 16 bits.
fn er_i32_widen_pairs(a: I) -> I {
  let low = ((a << U(24u)) >> U(24u)) & I(0xffff);
  return low | (((a << U(16u)) >> U(24u)) << U(16u));
}
