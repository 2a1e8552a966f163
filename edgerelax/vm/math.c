/* The functions of libm that cpu kernels import: er_sinf, er_sin… */

#include <math.h>

#define UNARY(name)             \
  float er_##name##f(float x);  \
  double er_##name(double x);   \
  float er_##name##f(float x) { \
    return name##f(x);          \
  }                             \
  double er_##name(double x) {  \
    return name(x);             \
  }

#define BINARY(name)                     \
  float er_##name##f(float x, float y);  \
  double er_##name(double x, double y);  \
  float er_##name##f(float x, float y) { \
    return name##f(x, y);                \
  }                                      \
  double er_##name(double x, double y) { \
    return name(x, y);                   \
  }

UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(atan)
UNARY(sinh)
UNARY(cosh)
UNARY(tanh)
UNARY(asinh)
UNARY(acosh)
UNARY(atanh)
UNARY(exp)
UNARY(log)
UNARY(log1p)
UNARY(expm1)
UNARY(erf)
BINARY(pow)
BINARY(fmod)
