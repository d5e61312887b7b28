// Elementary functions on elements. Those that models spend time in have f32 lanes; the rest compute in f64.
#include "elementary.h"
#include "elementary64.h"
#include "elementwise.h"

namespace hg::aten {

// One expression in f64, rounded once for f32.
#define HG_WIDE(name, ...)                                                       \
  struct name {                                                                  \
    static double of(double a) { return __VA_ARGS__; }                           \
    static float of(float a) { return float(of(double(a))); }                    \
  };
// One expression in f64 and one on lanes of f32.
#define HG_FAST(name, wide, fast)                                                \
  struct name {                                                                  \
    static double of(double a) { return wide; }                                  \
    static HG_INLINE F32x16 lanes(F32x16 a) { return fast; }                     \
  };

HG_INLINE F32x16 one() { return splat(1.0f); }
HG_INLINE F32x16 half() { return splat(0.5f); }
HG_INLINE F32x16 logistic(F32x16 a) { return one() / (one() + hg::exp(-a)); }

HG_FAST(exp, hg::exp(a), hg::exp(a))
HG_FAST(log, hg::log(a), hg::log(a))
HG_FAST(sin, hg::sin(a), hg::sin(a))
HG_FAST(cos, hg::cos(a), hg::cos(a))
HG_FAST(tanh, hg::tanh(a), hg::tanh(a))
HG_FAST(erf, hg::erf(a), hg::erf(a))
HG_FAST(sqrt, hg::sqrt(a), hg::sqrt(a))
HG_FAST(rsqrt, 1.0 / hg::sqrt(a), hg::rsqrt(a))
HG_FAST(sigmoid, 1.0 / (1.0 + hg::exp(-a)), logistic(a))
HG_FAST(silu, a / (1.0 + hg::exp(-a)), a / (one() + hg::exp(-a)))
HG_FAST(gelu, 0.5 * a * (1.0 + hg::erf(a * 0.70710678118654752440)), half() * a * (one() + hg::erf(a * splat(0.70710678118654752440f))))
HG_FAST(gelu_tanh, 0.5 * a * (1.0 + hg::tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a))),
        half() * a * (one() + hg::tanh(splat(0.79788456080286535588f) * (a + splat(0.044715f) * a * a * a))))
HG_WIDE(expm1, hg::expm1(a))
HG_WIDE(exp2, hg::pow(2.0, a))
HG_WIDE(log2, hg::log2(a))
HG_WIDE(log10, hg::log10(a))
HG_WIDE(log1p, hg::log1p(a))
HG_WIDE(tan, hg::tan(a))
HG_WIDE(asin, hg::asin(a))
HG_WIDE(acos, hg::acos(a))
HG_WIDE(atan, hg::atan(a))
HG_WIDE(sinh, hg::sinh(a))
HG_WIDE(cosh, hg::cosh(a))
HG_WIDE(asinh, hg::asinh(a))
HG_WIDE(acosh, hg::acosh(a))
HG_WIDE(atanh, hg::atanh(a))
HG_WIDE(floor, hg::floor(a))
HG_WIDE(ceil, hg::ceil(a))
HG_WIDE(trunc, hg::truncate(a))
HG_WIDE(round, hg::round_even(a))
struct atan2 {
  static double of(double a, double b) { return hg::atan2(a, b); }
  static float of(float a, float b) { return float(of(double(a), double(b))); }
};

}  // namespace hg::aten

HG_MODULE("aten_math", HG_REAL(1, exp), HG_REAL(1, log), HG_REAL(1, sin), HG_REAL(1, cos), HG_REAL(1, tanh),
          HG_REAL(1, erf), HG_REAL(1, sqrt), HG_REAL(1, rsqrt), HG_REAL(1, sigmoid), HG_REAL(1, silu), HG_REAL(1, gelu),
          HG_REAL(1, gelu_tanh), HG_REAL(1, expm1), HG_REAL(1, exp2), HG_REAL(1, log2), HG_REAL(1, log10),
          HG_REAL(1, log1p), HG_REAL(1, tan), HG_REAL(1, asin), HG_REAL(1, acos), HG_REAL(1, atan), HG_REAL(1, sinh),
          HG_REAL(1, cosh), HG_REAL(1, asinh), HG_REAL(1, acosh), HG_REAL(1, atanh), HG_REAL(1, floor), HG_REAL(1, ceil),
          HG_REAL(1, trunc), HG_REAL(1, round), HG_REAL(2, atan2))
