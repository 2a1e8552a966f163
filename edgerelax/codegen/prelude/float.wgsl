// Float functions with the meaning of ir/functions.py on every device.
//
// F, I, U and B are f32, i32, u32 and bool, or their vectors. Functions of plain f32 are applied lane
// by lane to vectors. Drivers assume NaN and infinity away and reassociate, so NaN is tested by bits
// and no function depends on the order of additions. Errors are those of correctly rounded operations.

fn er_from_bits(bits: u32) -> f32 {
  return bitcast<f32>(bits);
}

fn er_isnan(x: F) -> B {
  return (bitcast<U>(x) & U(0x7fffffffu)) > U(0x7f800000u);
}

fn er_isinf(x: F) -> B {
  return (bitcast<U>(x) & U(0x7fffffffu)) == U(0x7f800000u);
}

// The magnitude of x with the sign of y.
fn er_copysign(x: F, y: F) -> F {
  return bitcast<F>((bitcast<U>(x) & U(0x7fffffffu)) | (bitcast<U>(y) & U(0x80000000u)));
}

fn er_ne(x: F, y: F) -> B {
  return (x != y) | er_isnan(x) | er_isnan(y);
}

fn er_min(x: F, y: F) -> F {
  return select(select(min(x, y), y, er_isnan(y)), x, er_isnan(x));
}

fn er_max(x: F, y: F) -> F {
  return select(select(max(x, y), y, er_isnan(y)), x, er_isnan(x));
}

fn er_sign(x: F) -> F {
  return select(sign(x), x, er_isnan(x));
}

fn er_sqrt(x: F) -> F {
  return select(sqrt(x), x, er_isnan(x));
}

fn er_exp(x: F) -> F {
  return select(exp(x), x, er_isnan(x));
}

// 2 atanh(s) for |s| <= 0.1716, relative error 5e-12 before rounding.
fn er_log_series(s: F) -> F {
  let z = s * s;
  let q = ((F(0.11791785806417465f) * z + F(0.14268618822097778f)) * z + F(0.20000168681144714f)) * z
    + F(0.3333333134651184f);
  return F(2.0f) * (s + s * z * q);
}

// The mantissa is brought to [sqrt(1/2), sqrt(2)); 2 ulp.
fn er_log(x: F) -> F {
  let bits = bitcast<I>(x);
  let e = (bits - I(0x3f3504f3)) >> U(23u);
  let m = bitcast<F>(bits - (e << U(23u)));
  let r = F(e) * F(0.6931471805599453f) + er_log_series((m - F(1.0f)) / (m + F(1.0f)));
  let inf_or_nan = select(r, x, bits >= I(0x7f800000));
  let negative = select(inf_or_nan, F(er_from_bits(0x7fc00000u)), bits < I(0));
  return select(negative, F(er_from_bits(0xff800000u)), (bits & I(0x7fffffff)) == I(0));
}

fn er_log1p(x: F) -> F {
  let small = (x > F(-0.29f)) & (x < F(0.41f));
  return select(er_log(F(1.0f) + x), er_log_series(x / (F(2.0f) + x)), small);
}

// A polynomial where exp(x) - 1 would cancel.
fn er_expm1(x: F) -> F {
  let p = ((((F(0.00019849807722494006f) * x + F(0.0013996177585795522f)) * x
    + F(0.008333578705787659f)) * x + F(0.04166536033153534f)) * x + F(0.166666641831398f)) * x
    + F(0.5f);
  return select(er_exp(x) - F(1.0f), x + x * x * p, abs(x) < F(0.5f));
}

// x P(x^2) / Q(x^2), relative error 7e-9 before rounding.
fn er_tanh(x: F) -> F {
  let c = clamp(x, F(-9.02f), F(9.02f));
  let z = c * c;
  let p = (((((F(-8.43601379615748e-14f) * z + F(5.257763668886639e-11f)) * z
    + F(-2.01839291946726e-08f)) * z + F(1.1144245036120992e-05f)) * z
    + F(0.0031030001118779182f)) * z + F(0.1308315545320511f)) * z + F(1.0f);
  let q = ((F(0.0002544749586377293f) * z + F(0.02449137717485428f)) * z
    + F(0.4641648232936859f)) * z + F(1.0f);
  let r = select(c * p / q, er_copysign(F(1.0f), x), abs(x) >= F(9.02f));
  return select(r, x, er_isnan(x));
}

// x P(x^2) / Q(x^2), relative error 2e-8 before rounding.
fn er_erf(x: F) -> F {
  let c = clamp(x, F(-3.93f), F(3.93f));
  let z = c * c;
  let p = ((((F(2.041971583821578e-06f) * z + F(0.00028480871696956456f)) * z
    + F(0.003779610386118293f)) * z + F(0.052790287882089615f)) * z
    + F(0.19078384339809418f)) * z + F(1.1283791065216064f);
  let q = ((((F(3.800409103860147e-05f) * z + F(0.0011652131797745824f)) * z
    + F(0.014997439458966255f)) * z + F(0.11425752937793732f)) * z
    + F(0.5024105310440063f)) * z + F(1.0f);
  let r = select(c * p / q, er_copysign(F(1.0f), x), abs(x) >= F(3.93f));
  return select(r, x, er_isnan(x));
}

fn er_sigmoid(x: F) -> F {
  return F(1.0f) / (F(1.0f) + er_exp(-x));
}

fn er_sinh(x: F) -> F {
  let z = x * x;
  let p = (F(0.00020377406326588243f) * z + F(0.008330211043357849f)) * z + F(0.166667178273201f);
  let h = er_exp(F(0.5f) * abs(x));
  let large = er_copysign((F(0.5f) * h) * h - F(0.5f) / (h * h), x);
  return select(select(large, x + x * z * p, abs(x) < F(1.0f)), x, er_isnan(x));
}

fn er_cosh(x: F) -> F {
  let h = er_exp(F(0.5f) * abs(x));
  return (F(0.5f) * h) * h + F(0.5f) / (h * h);
}

fn er_asinh(x: F) -> F {
  let a = abs(x);
  let small = er_log1p(a + a * a / (F(1.0f) + sqrt(a * a + F(1.0f))));
  let r = select(small, er_log(a) + F(0.6931471805599453f), a > F(1e18f));
  return select(er_copysign(r, x), x, er_isnan(x));
}

fn er_acosh(x: F) -> F {
  let t = x - F(1.0f);
  let small = er_log1p(t + sqrt(t * (t + F(2.0f))));
  let r = select(small, er_log(x) + F(0.6931471805599453f), x > F(1e18f));
  let nan = F(er_from_bits(0x7fc00000u));
  return select(select(r, nan, x < F(1.0f)), x, er_isnan(x));
}

fn er_atanh(x: F) -> F {
  let a = abs(x);
  let r = er_copysign(F(0.5f) * er_log1p((a + a) / (F(1.0f) - a)), x);
  let finite = select(r, er_copysign(F(er_from_bits(0x7f800000u)), x), a == F(1.0f));
  let nan = F(er_from_bits(0x7fc00000u));
  return select(select(finite, nan, a > F(1.0f)), x, er_isnan(x));
}

// asin(sqrt(z)) for s = sqrt(z), z <= 1/4; relative error 5e-9 before rounding.
fn er_asin_series(s: F, z: F) -> F {
  let p = (((F(0.04221854731440544f) * z + F(0.02414761111140251f)) * z
    + F(0.04547709599137306f)) * z + F(0.07495241612195969f)) * z + F(0.16666753590106964f);
  return s + s * z * p;
}

fn er_asin(x: F) -> F {
  let a = abs(x);
  let outer = a > F(0.5f);
  let z = select(a * a, F(0.5f) * (F(1.0f) - a), outer);
  let r = er_asin_series(select(a, sqrt(max(z, F(0.0f))), outer), z);
  let folded = er_copysign(select(r, F(1.5707963267948966f) - F(2.0f) * r, outer), x);
  let nan = F(er_from_bits(0x7fc00000u));
  return select(select(folded, nan, a > F(1.0f)), x, er_isnan(x));
}

fn er_acos(x: F) -> F {
  let a = abs(x);
  let outer = a > F(0.5f);
  let z = select(a * a, F(0.5f) * (F(1.0f) - a), outer);
  let r = er_asin_series(select(a, sqrt(max(z, F(0.0f))), outer), z);
  let inner = F(1.5707963267948966f) - er_copysign(r, x);
  let ends = select(F(2.0f) * r, F(3.141592653589793f) - F(2.0f) * r, x < F(0.0f));
  let nan = F(er_from_bits(0x7fc00000u));
  return select(select(select(inner, ends, outer), nan, a > F(1.0f)), x, er_isnan(x));
}

// Relative error 1.5e-8 before rounding.
fn er_atan(x: F) -> F {
  let a = abs(x);
  let outer = a > F(1.0f);
  let t = select(a, F(1.0f) / a, outer);
  let z = t * t;
  let p = ((((((F(0.0029745432548224926f) * z + F(-0.01658099703490734f)) * z
    + F(0.04355324059724808f)) * z + F(-0.07580552995204926f)) * z
    + F(0.10678929090499878f)) * z + F(-0.14214205741882324f)) * z
    + F(0.19994136691093445f)) * z + F(-0.3333316743373871f);
  let r = t + t * z * p;
  let folded = er_copysign(select(r, F(1.5707963267948966f) - r, outer), x);
  return select(folded, x, er_isnan(x));
}

// x modulo pi/2, in [-pi/4, pi/4], and the quadrant; exact for every finite x, since the product with
// 96 bits of 2/pi is one of integers.
fn er_quadrant(x: f32) -> vec2<f32> {
  let bits = bitcast<u32>(x);
  let exponent = (bits >> 23u) & 255u;
  if (exponent < 126u) {
    return vec2<f32>(x, 0.0f);
  }
  var table = array<u32, 8>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u,
    0x3c439041u, 0xfe5163abu);
  let word = (exponent - 120u) >> 5u;
  let shift = (exponent - 120u) & 31u;
  let w0 = (table[word] << shift) | ((table[word + 1u] >> 1u) >> (31u - shift));
  let w1 = (table[word + 1u] << shift) | ((table[word + 2u] >> 1u) >> (31u - shift));
  let w2 = (table[word + 2u] << shift) | ((table[word + 3u] >> 1u) >> (31u - shift));
  let m = (bits & 0x7fffffu) | 0x800000u;
  let middle = er_mul_wide(m, w1);
  let low = middle.x + er_mul_wide(m, w2).y;
  let high = m * w0 + middle.y + select(0u, 1u, low < middle.x);
  let quadrant = (high + 0x20000000u) >> 30u;
  let rest = vec2<u32>(low, high - (quadrant << 30u));
  let negative = rest.y >= 0x80000000u;
  let size = select(rest, er_i64_neg(rest), negative);
  let r = (f32(size.y) + f32(size.x) * 2.3283064365386963e-10f) * 1.4629180792671596e-09f;
  let flip = negative != (bits >= 0x80000000u);
  let turns = select(f32(quadrant), f32(4u - quadrant), bits >= 0x80000000u);
  return vec2<f32>(select(r, -r, flip), turns);
}

fn er_sin_series(r: f32) -> f32 {
  let z = r * r;
  return r + r * z * ((-0.0001951601152541116f * z + 0.00833216868340969f) * z - 0.16666655242443085f);
}

fn er_cos_series(r: f32) -> f32 {
  let z = r * r;
  let p = (2.4437005777144805e-05f * z - 0.001388735487125814f) * z + 0.04166664555668831f;
  return 1.0f - 0.5f * z + z * z * p;
}

fn er_sin(x: f32) -> f32 {
  let q = er_quadrant(x);
  let turns = u32(q.y);
  let s = select(er_sin_series(q.x), er_cos_series(q.x), (turns & 1u) == 1u);
  let r = select(s, -s, (turns & 2u) == 2u);
  return select(r, er_from_bits(0x7fc00000u), (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u);
}

fn er_cos(x: f32) -> f32 {
  let q = er_quadrant(x);
  let turns = u32(q.y) + 1u;
  let s = select(er_sin_series(q.x), er_cos_series(q.x), (turns & 1u) == 1u);
  let r = select(s, -s, (turns & 2u) == 2u);
  return select(r, er_from_bits(0x7fc00000u), (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u);
}

fn er_tan(x: f32) -> f32 {
  let q = er_quadrant(x);
  let s = er_sin_series(q.x);
  let c = er_cos_series(q.x);
  let r = select(s / c, -c / s, (u32(q.y) & 1u) == 1u);
  return select(r, er_from_bits(0x7fc00000u), (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u);
}

// Exact: the remainder of the mantissas, eight bits of the quotient a step.
fn er_fmod(x: f32, y: f32) -> f32 {
  let ax = bitcast<u32>(x) & 0x7fffffffu;
  let ay = bitcast<u32>(y) & 0x7fffffffu;
  if (ax >= 0x7f800000u || ay > 0x7f800000u || ay < 0x800000u) {
    return er_from_bits(0x7fc00000u);
  }
  if (ax < ay) {
    return x;
  }
  let divisor = (ay & 0x7fffffu) | 0x800000u;
  var rest = ((ax & 0x7fffffu) | 0x800000u) % divisor;
  var left = (ax >> 23u) - (ay >> 23u);
  while (left > 0u) {
    let step = min(left, 8u);
    rest = (rest << step) % divisor;
    left -= step;
  }
  let size = f32(rest) * 1.1920928955078125e-07f * bitcast<f32>(ay & 0x7f800000u);
  return er_copysign(size, x);
}

fn er_mod(x: f32, y: f32) -> f32 {
  let r = er_fmod(x, y);
  if (r == 0.0f) {
    return er_copysign(r, y);
  }
  return select(r, r + y, (r < 0.0f) != (y < 0.0f));
}

// Small integer exponents by multiplication, so that squares and cubes are exact.
fn er_pow(x: f32, y: f32) -> f32 {
  let whole = trunc(y) == y;
  if (whole && abs(y) <= 64.0f) {
    var rest = u32(abs(y));
    var square = x;
    var product = 1.0f;
    while (rest > 0u) {
      product = select(product, product * square, (rest & 1u) == 1u);
      square = square * square;
      rest = rest >> 1u;
    }
    return select(product, 1.0f / product, y < 0.0f);
  }
  let a = abs(x);
  let size = select(er_exp(y * er_log(a)), 1.0f, a == 1.0f);
  let odd = whole && abs(y) < 16777216.0f && (i32(y) & 1) == 1;
  let minus = (bitcast<u32>(x) & 0x80000000u) != 0u;
  let signed = select(size, -size, minus && odd);
  let undefined = minus && !whole && !er_isinf(y) && a != 0.0f && !er_isinf(a);
  let r = select(signed, er_from_bits(0x7fc00000u), undefined || er_isnan(x) || er_isnan(y));
  return select(r, 1.0f, (x == 1.0f) & !er_isnan(x));
}

fn er_f32_to_i32(x: F) -> I {
  let r = select(I(clamp(x, F(-2147483648.0f), F(2147483520.0f))), I(2147483647), x >= F(2147483648.0f));
  return select(r, I(0), er_isnan(x));
}

fn er_f32_to_u32(x: F) -> U {
  let r = select(U(clamp(x, F(0.0f), F(4294967040.0f))), U(4294967295u), x >= F(4294967296.0f));
  return select(r, U(0u), er_isnan(x));
}

// To a narrower integer type of that range.
fn er_f32_to_range(x: F, low: f32, high: f32) -> I {
  return select(I(clamp(x, F(low), F(high))), I(0), er_isnan(x));
}

fn er_f32_to_bool(x: F) -> B {
  return (bitcast<U>(x) & U(0x7fffffffu)) != U(0u);
}
