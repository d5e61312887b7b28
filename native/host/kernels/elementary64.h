// Elementary functions of one double. Results are within 4 ulp (erf: 20; pow: 1e-13 relative, since its error grows
// with the exponent; sin, cos, tan: while |x| < 1e6). The f32 forms of rare functions are these, rounded once.
// NaN, infinities and zeros give what C's functions give. Algorithms and constants are those of fdlibm.
#pragma once
#include "vector.h"

namespace hg {

constexpr double kInfinity = __builtin_inf();
constexpr double kNaN = __builtin_nan("");
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;

// ---- to an integer: the instruction where the level has it, else the same result by conversion -------------------
HG_INLINE double truncate(double x) {
#if defined(__SSE4_1__)
  return __builtin_trunc(x);
#else
  const double magnitude = __builtin_fabs(x);
  return magnitude < 0x1p52 ? __builtin_copysign(double(int64_t(magnitude)), x) : x;
#endif
}
HG_INLINE double floor(double x) {
  const double t = truncate(x);
  return t > x ? t - 1.0 : t;
}
HG_INLINE double ceil(double x) {
  const double t = truncate(x);
  return t < x ? __builtin_copysign(t + 1.0, x) : t;
}
HG_INLINE double round_even(double x) {
  const double magnitude = __builtin_fabs(x);
  const double rounded = (magnitude + 0x1p52) - 0x1p52;
  return magnitude < 0x1p52 ? __builtin_copysign(rounded, x) : x;
}

// 2^k for k in [-1022, 1023].
HG_INLINE double power_of_two(int64_t k) { return bit_cast<double>(uint64_t(k + 1023) << 52); }

inline double exp(double x) {
  const double c = x > 710.0 ? 710.0 : x < -746.0 ? -746.0 : x == x ? x : 0.0;
  const double n = round_even(c * 1.44269504088896338700);
  const double high = c - n * kLn2High, low = n * kLn2Low, r = high - low, t = r * r;
  const double p = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * (6.61375632143793436117e-05 +
                       t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  const double y = 1.0 - ((low - (r * p) / (2.0 - p)) - high);
  const int64_t k = int64_t(n), half = k >> 1;
  return x == x ? y * power_of_two(half) * power_of_two(k - half) : x;
}

inline double expm1(double x) {
  if (__builtin_fabs(x) > 0.34) return exp(x) - 1.0;
  if (x == 0.0) return x;
  const double half = 0.5 * x, s = x * half;
  const double r = 1.0 + s * (-3.33333333333331316428e-02 + s * (1.58730158725481460165e-03 + s * (-7.93650757867487942473e-05 +
                   s * (4.00821782732936239552e-06 + s * -2.01099218183624371326e-07))));
  const double t = 3.0 - r * half;
  const double e = s * ((r - t) / (6.0 - x * t));
  return x - (x * e - s);
}

struct Log { double exponent, fraction; };  // log(x) = exponent * ln 2 + fraction, x positive and finite
inline Log split_log(double x) {
  const bool small = x < 0x1p-1022;
  const uint64_t u = bit_cast<uint64_t>(small ? x * 0x1p54 : x) + (0x3FF0000000000000u - 0x3FE6A09E00000000u);
  const double k = double(int64_t(u >> 52) - 1023 - (small ? 54 : 0));
  const double f = bit_cast<double>((u & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E00000000u) - 1.0;
  const double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  const double r = z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01 + z * (2.857142874366239149e-01 +
                   z * (2.222219843214978396e-01 + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01 +
                   z * 1.479819860511658591e-01))))));
  return {k, f - (half - s * (half + r))};
}
HG_INLINE double log_edge(double x) { return x == 0.0 ? -kInfinity : x > 0.0 ? x : kNaN; }  // 0, infinity, the rest
HG_INLINE bool has_log(double x) { return x > 0.0 && x < kInfinity; }
inline double log(double x) {
  if (!has_log(x)) return log_edge(x);
  const Log l = split_log(x);
  return l.exponent * kLn2High + (l.fraction + l.exponent * kLn2Low);
}
inline double log2(double x) {
  if (!has_log(x)) return log_edge(x);
  const Log l = split_log(x);
  return l.exponent + l.fraction * 1.44269504088896338700;
}
inline double log10(double x) {
  if (!has_log(x)) return log_edge(x);
  const Log l = split_log(x);
  return l.exponent * 3.01029995663981195214e-01 + l.fraction * 4.34294481903251827651e-01;
}
inline double log1p(double x) {
  const double u = 1.0 + x;
  if (u == 1.0 || !(u < kInfinity)) return x;
  return u > 0.0 ? log(u) - ((u - 1.0) - x) / u : log_edge(u);
}

// Integer exponents up to 2^53 decide the sign of a negative base.
inline double pow(double a, double b) {
  if (b == 0.0 || a == 1.0) return 1.0;
  if (a != a || b != b) return kNaN;
  const double magnitude = __builtin_fabs(a), whole = truncate(b);
  const bool integer = whole == b;
  const bool odd = integer && __builtin_fabs(b) < 0x1p53 && (int64_t(whole) & 1) != 0;
  if (__builtin_fabs(b) == kInfinity) return magnitude == 1.0 ? 1.0 : (magnitude > 1.0) == (b > 0.0) ? kInfinity : 0.0;
  double y;
  if (magnitude == 0.0 || magnitude == kInfinity) y = (magnitude == 0.0) == (b < 0.0) ? kInfinity : 0.0;
  else if (a < 0.0 && !integer) return kNaN;
  else {
    const Log l = split_log(magnitude);  // whole powers of two are exact: their exponent does not pass through exp
    const double e = l.exponent * b, n = truncate(e);
    if (__builtin_fabs(n) < 1000.0 && __builtin_fabs(l.fraction * b) < 1.0) {
      y = exp(l.fraction * b + (e - n) * 0.69314718055994530942) * power_of_two(int64_t(n));
    } else {
      y = exp(b * log(magnitude));
    }
  }
  return odd && __builtin_copysign(1.0, a) < 0.0 ? -y : y;
}

// ---- circular --------------------------------------------------------------------------------------------------
struct Turn { double sin, cos; };
inline Turn sin_cos(double x) {
  const double n = round_even(x * 6.36619772367581382433e-01);
  double r = x - n * 1.57079632673412561417e+00;  // three parts of pi/2, 33 bits each: the products are exact
  r = r - n * 6.07710050630396597660e-11;
  r = r - n * 2.02226624879595063154e-21;
  const double z = r * r;
  const double s = r + r * z * (-1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 +
                   z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
  const double c = 1.0 - (0.5 * z - z * z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 +
                   z * (2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 +
                   z * -1.13596475577881948265e-11))))));
  if (!(__builtin_fabs(x) < kInfinity)) return {kNaN, kNaN};
  switch (int64_t(n) & 3) {
    case 0: return {x == 0.0 ? x : s, c};
    case 1: return {c, -s};
    case 2: return {-s, -c};
    default: return {-c, s};
  }
}
inline double sin(double x) { return sin_cos(x).sin; }
inline double cos(double x) { return sin_cos(x).cos; }
inline double tan(double x) {
  const Turn t = sin_cos(x);
  return t.sin / t.cos;
}

inline double atan(double x) {
  constexpr double kHigh[] = {0.0, 4.63647609000806093515e-01, 7.85398163397448278999e-01, 9.82793723247329054082e-01,
                              1.57079632679489655800e+00};
  constexpr double kLow[] = {0.0, 2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17,
                             6.12323399573676603587e-17};
  if (x != x) return x;
  const double a = __builtin_fabs(x);
  const int part = a < 0.4375 ? 0 : a < 0.6875 ? 1 : a < 1.1875 ? 2 : a < 2.4375 ? 3 : 4;
  const double t = part == 0 ? a : part == 1 ? (2.0 * a - 1.0) / (2.0 + a) : part == 2 ? (a - 1.0) / (a + 1.0)
                 : part == 3 ? (a - 1.5) / (1.0 + 1.5 * a) : -1.0 / a;
  const double z = t * t, w = z * z;
  const double even = z * (3.33333333333329318027e-01 + w * (1.42857142725034663711e-01 + w * (9.09088713343650656196e-02 +
                      w * (6.66107313738753120669e-02 + w * (4.97687799461593236017e-02 + w * 1.62858201153657823623e-02)))));
  const double odd = w * (-1.99999999998764832476e-01 + w * (-1.11111104054623557880e-01 + w * (-7.69187620504482999495e-02 +
                     w * (-5.83357013379057348645e-02 + w * -3.65315727442169155270e-02))));
  return __builtin_copysign(kHigh[part] - ((t * (even + odd) - kLow[part]) - t), x);
}
inline double atan2(double y, double x) {
  constexpr double kPi = 3.14159265358979311600, kPiLow = 1.22464679914735317723e-16;
  if (x != x || y != y) return kNaN;
  const double ay = __builtin_fabs(y), ax = __builtin_fabs(x);
  double angle;
  if (ay == 0.0) angle = 0.0;
  else if (ax == kInfinity && ay == kInfinity) angle = 0.25 * kPi;
  else angle = ax == 0.0 ? 0.5 * kPi : atan(ay / ax);
  if (__builtin_copysign(1.0, x) < 0.0) angle = kPi - (angle - kPiLow);
  return __builtin_copysign(angle, y);
}
inline double asin(double x) { return atan2(x, sqrt((1.0 - x) * (1.0 + x))); }
inline double acos(double x) { return atan2(sqrt((1.0 - x) * (1.0 + x)), x); }

// ---- hyperbolic ------------------------------------------------------------------------------------------------
inline double sinh(double x) {
  const double a = __builtin_fabs(x);
  const double h = exp(0.5 * a), t = expm1(a);
  return __builtin_copysign(a > 30.0 ? 0.5 * h * h : 0.5 * (t + t / (t + 1.0)), x);
}
inline double cosh(double x) {
  const double a = __builtin_fabs(x), h = exp(0.5 * a);
  return a > 30.0 ? 0.5 * h * h : 0.5 * (h * h + 1.0 / (h * h));
}
inline double tanh(double x) {
  const double t = expm1(2.0 * __builtin_fabs(x));
  return __builtin_copysign(t < kInfinity ? t / (t + 2.0) : t == t ? 1.0 : t, x);
}
inline double asinh(double x) {
  const double a = __builtin_fabs(x), s = a * a;
  return __builtin_copysign(a > 0x1p28 ? log(a) + 0.69314718055994530942 : log1p(a + s / (1.0 + sqrt(1.0 + s))), x);
}
inline double acosh(double x) {
  if (!(x >= 1.0)) return kNaN;
  if (x > 0x1p28) return log(x) + 0.69314718055994530942;
  const double t = x - 1.0;
  return log1p(t + sqrt(t * (x + 1.0)));
}
inline double atanh(double x) {
  const double a = __builtin_fabs(x);
  return __builtin_copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x);
}

// A series of positive terms: erf(x) = 2/sqrt(pi) e^(-x^2) sum over n of 2^n x^(2n+1) / (1 3 5 ... (2n+1)).
inline double erf(double x) {
  const double a = __builtin_fabs(x), s = 2.0 * a * a;
  if (a > 6.0) return __builtin_copysign(1.0, x);
  double term = a, total = a;
  for (double odd = 3.0; term > total * 0x1p-54; odd += 2.0) total += term *= s / odd;
  return __builtin_copysign(1.12837916709551257390 * exp(-a * a) * total, x);
}

// ---- division ----------------------------------------------------------------------------------------------------
inline int64_t exponent(double x) {  // of a positive number, its leading bit is 2^(exponent - 1023)
  const bool small = x < 0x1p-1022;
  return int64_t(bit_cast<uint64_t>(small ? x * 0x1p54 : x) >> 52) - (small ? 54 : 0);
}
// Exact: the remainder of a division that truncates, as C's fmod.
inline double fmod(double a, double b) {
  const double divisor = __builtin_fabs(b);
  double rest = __builtin_fabs(a);
  if (a != a || b != b || rest == kInfinity || divisor == 0.0) return kNaN;
  while (rest >= divisor) {  // subtract divisor * 2^k, the largest that fits
    double step = divisor;
    for (int64_t left = exponent(rest) - exponent(divisor); left > 0; left -= 1000) step *= power_of_two(left < 1000 ? left : 1000);
    rest -= step <= rest ? step : 0.5 * step;
  }
  return __builtin_copysign(rest, a);
}

}  // namespace hg
