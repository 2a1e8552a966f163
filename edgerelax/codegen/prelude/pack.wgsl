// Narrow elements in u32 words, first element in the low bits, and narrow floats as f32 values.

fn er_bytes(word: u32) -> vec4<u32> {
  return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
}

fn er_halves_v2(word: u32) -> vec2<u32> {
  return vec2<u32>(word & 0xffffu, word >> 16u);
}

fn er_halves_v4(a: u32, b: u32) -> vec4<u32> {
  return vec4<u32>(a & 0xffffu, a >> 16u, b & 0xffffu, b >> 16u);
}

fn er_pack_bytes(x: vec4<u32>) -> u32 {
  let b = (x & vec4<u32>(255u)) << vec4<u32>(0u, 8u, 16u, 24u);
  return b.x | b.y | b.z | b.w;
}

fn er_pack_halves(x: vec2<u32>) -> u32 {
  return (x.x & 0xffffu) | (x.y << 16u);
}

// Every f16 but the subnormal ones by moving its bits; those are multiples of 2^-24.
fn er_decode_f16(bits: U) -> F {
  let size = bits & U(0x7fffu);
  let special = select(U(0x38000000u), U(0x70000000u), size >= U(0x7c00u));
  let normal = bitcast<F>((size << U(13u)) + special);
  let small = F(size) * F(5.9604644775390625e-08f);
  let value = select(normal, small, size < U(0x400u));
  return bitcast<F>(bitcast<U>(value) | ((bits & U(0x8000u)) << U(16u)));
}

// To nearest, ties to even: the bits below the last kept one are rounded by an integer addition.
fn er_encode_f16(x: F) -> U {
  let bits = bitcast<U>(x);
  let size = bits & U(0x7fffffffu);
  let normal = (size - U(0x38000000u) + U(0xfffu) + ((size >> U(13u)) & U(1u))) >> U(13u);
  let small = U(round(bitcast<F>(min(size, U(0x38800000u))) * F(16777216.0f)));
  let finite = select(normal, small, size < U(0x38800000u));
  let over = select(finite, U(0x7c00u), size >= U(0x477ff000u));
  let r = select(over, U(0x7e00u), size > U(0x7f800000u));
  return r | ((bits >> U(16u)) & U(0x8000u));
}

fn er_round_f16(x: F) -> F {
  return er_decode_f16(er_encode_f16(x));
}

fn er_decode_bf16(bits: U) -> F {
  return bitcast<F>(bits << U(16u));
}

fn er_encode_bf16(x: F) -> U {
  let bits = bitcast<U>(x);
  let rounded = (bits + U(0x7fffu) + ((bits >> U(16u)) & U(1u))) >> U(16u);
  let nan = ((bits >> U(16u)) & U(0x8000u)) | U(0x7fc0u);
  return select(rounded, nan, (bits & U(0x7fffffffu)) > U(0x7f800000u));
}

fn er_round_bf16(x: F) -> F {
  return er_decode_bf16(er_encode_bf16(x));
}

// An 8-bit float with `mantissa` bits of fraction; `tiny` is the least subnormal, and `lift` moves
// the exponent. Without infinities and NaNs, which the callers know.
fn er_decode_f8(bits: U, mantissa: u32, lift: u32, tiny: f32) -> F {
  let size = bits & U(127u);
  let normal = bitcast<F>((size << U(23u - mantissa)) + U(lift));
  let value = select(normal, F(size) * F(tiny), (size >> U(mantissa)) == U(0u));
  return bitcast<F>(bitcast<U>(value) | ((bits & U(128u)) << U(24u)));
}

// The magnitude, rounded to nearest even; below `least`, the least normal, in multiples of 1/scale.
fn er_encode_f8(x: F, mantissa: u32, lift: u32, least: u32, scale: f32) -> U {
  let size = bitcast<U>(x) & U(0x7fffffffu);
  let drop = 23u - mantissa;
  let half = U((1u << (drop - 1u)) - 1u);
  let normal = (size - U(lift) + half + ((size >> U(drop)) & U(1u))) >> U(drop);
  let small = U(round(bitcast<F>(min(size, U(least))) * F(scale)));
  return select(normal, small, size < U(least));
}

fn er_f8_sign(x: F) -> U {
  return (bitcast<U>(x) >> U(24u)) & U(128u);
}

fn er_decode_f8e4m3fn(bits: U) -> F {
  let value = er_decode_f8(bits, 3u, 0x3c000000u, 0.001953125f);
  return select(value, F(er_from_bits(0x7fc00000u)), (bits & U(127u)) == U(127u));
}

fn er_encode_f8e4m3fn(x: F) -> U {
  let size = er_encode_f8(x, 3u, 0x3c000000u, 0x3c800000u, 512.0f);
  let over = (size > U(126u)) | ((bitcast<U>(x) & U(0x7fffffffu)) >= U(0x43f00000u));
  return select(size, U(127u), over) | er_f8_sign(x);
}

fn er_decode_f8e4m3fnuz(bits: U) -> F {
  let value = er_decode_f8(bits, 3u, 0x3b800000u, 0.0009765625f);
  return select(value, F(er_from_bits(0x7fc00000u)), bits == U(128u));
}

fn er_encode_f8e4m3fnuz(x: F) -> U {
  let size = er_encode_f8(x, 3u, 0x3b800000u, 0x3c000000u, 1024.0f);
  let over = (size > U(127u)) | ((bitcast<U>(x) & U(0x7fffffffu)) >= U(0x43780000u));
  let signed = select(size | er_f8_sign(x), U(0u), size == U(0u));
  return select(signed, U(128u), over);
}

fn er_decode_f8e5m2(bits: U) -> F {
  return er_decode_f16(bits << U(8u));
}

fn er_encode_f8e5m2(x: F) -> U {
  let size = er_encode_f8(x, 2u, 0x38000000u, 0x38800000u, 65536.0f);
  let over = select(size, U(124u), (bitcast<U>(x) & U(0x7fffffffu)) >= U(0x47700000u));
  return select(over, U(126u), er_isnan(x)) | er_f8_sign(x);
}

fn er_decode_f8e5m2fnuz(bits: U) -> F {
  let value = er_decode_f8(bits, 2u, 0x37800000u, 7.62939453125e-06f);
  return select(value, F(er_from_bits(0x7fc00000u)), bits == U(128u));
}

fn er_encode_f8e5m2fnuz(x: F) -> U {
  let size = er_encode_f8(x, 2u, 0x37800000u, 0x38000000u, 131072.0f);
  let over = (size > U(127u)) | ((bitcast<U>(x) & U(0x7fffffffu)) >= U(0x47700000u));
  let signed = select(size | er_f8_sign(x), U(0u), size == U(0u));
  return select(signed, U(128u), over);
}

// Without infinities and NaNs: what is out of range becomes the greatest, NaN a zero of other sign.
fn er_decode_f4e2m1(bits: U) -> F {
  return er_decode_f8((bits & U(7u)) | ((bits & U(8u)) << U(4u)), 1u, 0x3f000000u, 0.5f);
}

fn er_encode_f4e2m1(x: F) -> U {
  let size = er_encode_f8(x, 1u, 0x3f000000u, 0x3f800000u, 2.0f);
  let sign = (bitcast<U>(x) >> U(28u)) & U(8u);
  let over = (bitcast<U>(x) & U(0x7fffffffu)) >= U(0x40c00000u);
  return select(select(size, U(7u), over) | sign, sign ^ U(8u), er_isnan(x));
}

// Powers of two from 2^-127 on: an exponent and nothing else. Rounded up.
fn er_decode_f8e8m0(bits: U) -> F {
  let value = select(bits << U(23u), U(0x400000u), bits == U(0u));
  return bitcast<F>(select(value, U(0x7fc00000u), bits == U(255u)));
}

fn er_encode_f8e8m0(x: F) -> U {
  let bits = bitcast<U>(x);
  let code = (bits >> U(23u)) + select(U(0u), U(1u), (bits & U(0x7fffffu)) != U(0u));
  let least = (bits <= U(0x400000u)) | (bits == U(0x80000000u));
  return select(min(code, U(255u)), U(0u), least);
}

fn er_round_f8e4m3fn(x: F) -> F {
  return er_decode_f8e4m3fn(er_encode_f8e4m3fn(x));
}

fn er_round_f8e4m3fnuz(x: F) -> F {
  return er_decode_f8e4m3fnuz(er_encode_f8e4m3fnuz(x));
}

fn er_round_f8e5m2(x: F) -> F {
  return er_decode_f8e5m2(er_encode_f8e5m2(x));
}

fn er_round_f8e5m2fnuz(x: F) -> F {
  return er_decode_f8e5m2fnuz(er_encode_f8e5m2fnuz(x));
}

fn er_round_f4e2m1(x: F) -> F {
  return er_decode_f4e2m1(er_encode_f4e2m1(x));
}

fn er_round_f8e8m0(x: F) -> F {
  return er_decode_f8e8m0(er_encode_f8e8m0(x));
}
