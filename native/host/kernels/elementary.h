// exp, log, sin, cos, tanh, erf in f32, for any number of lanes; a scalar is a lane of the same code, so both forms
// give the same bits. Errors are the largest seen against 200-bit arithmetic over the whole range, in ulp
// (tests/ops/test_elementary.py holds them): exp 1.0, log 1.0, sin and cos 1.6, tanh 1.4, erf 1.2.
// NaN gives NaN, infinities and zeros what C's functions give; sin and cos hold for every finite argument.
#pragma once
#include "vector.h"

namespace hg {

template <int N> using F32 = Lanes<float, N>;
template <int N> HG_INLINE F32<N> f32(float x) { return splat<float, N>(x); }

// c0 + x (c1 + x (c2 + ...)), coefficients from the highest power down.
template <int N, class... Rest> HG_INLINE F32<N> polynomial(F32<N> x, float highest, Rest... lower) {
  F32<N> y = f32<N>(highest);
  ((y = fma(y, x, f32<N>(lower))), ...);
  return y;
}
template <int N> HG_INLINE F32<N> copy_sign(F32<N> magnitude, F32<N> sign) {
  const auto top = splat<uint32_t, N>(0x80000000u);
  return bits<float>((bits<uint32_t>(magnitude) & ~top) | (bits<uint32_t>(sign) & top));
}

template <int N> HG_INLINE F32<N> exp(F32<N> x) {
  const F32<N> c = max(min(x, f32<N>(89.0f)), f32<N>(-105.0f));  // beyond: infinity, zero
  const F32<N> magic = f32<N>(0x1.8p23f);                         // adding it rounds to an integer
  const F32<N> n = fma(c, f32<N>(0x1.715476p0f), magic) - magic;
  F32<N> r = fma(n, f32<N>(-0.693359375f), c);
  r = fma(n, f32<N>(2.12194440e-4f), r);
  const F32<N> p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                              1.6666665459e-1f, 5.0000001201e-1f);
  const F32<N> y = fma(p, r * r, r) + f32<N>(1.0f);
  // 2^n in two factors, since n reaches from -151 to 128.
  const Lanes<int32_t, N> e = convert<int32_t>(n), half = e >> 1, one = splat<int32_t, N>(127);
  const F32<N> out = y * bits<float>((half + one) << 23) * bits<float>((e - half + one) << 23);
  return select<float, N>(x == x, out, x);
}

template <int N> HG_INLINE F32<N> log(F32<N> x) {
  const auto small = x < f32<N>(0x1p-126f);
  const F32<N> scaled = select<float, N>(small, x * f32<N>(0x1p23f), x);
  const Lanes<int32_t, N> u = bits<int32_t>(scaled) - splat<int32_t, N>(0x3F3504F3);  // mantissa from sqrt(1/2)
  const Lanes<int32_t, N> k = u >> 23;
  const F32<N> f = bits<float>(bits<int32_t>(scaled) - (k << 23)) - f32<N>(1.0f);
  const F32<N> e = convert<float>(k) - select<float, N>(small, f32<N>(23.0f), f32<N>(0.0f));
  const F32<N> z = f * f;
  F32<N> y = polynomial(f, 7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f,
                        1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f);
  y = fma(e, f32<N>(-2.12194440e-4f), y * f * z);
  y = fma(z, f32<N>(-0.5f), y);
  F32<N> out = fma(e, f32<N>(0.693359375f), f + y);
  out = select<float, N>(x == f32<N>(0.0f), f32<N>(-__builtin_inff()), out);
  out = select<float, N>(x == f32<N>(__builtin_inff()), x, out);
  return select<float, N>(x >= f32<N>(0.0f), out, f32<N>(__builtin_nanf("")));
}

// ---- sin and cos -----------------------------------------------------------------------------------------------
template <int N> struct Reduced {
  F32<N> r;                 // x - quadrant * pi/2, in [-pi/4, pi/4]
  Lanes<int32_t, N> quadrant;  // modulo 4
};

// Arguments from 2^27 on: x = m * 2^e, and only the bits of 2/pi from 2^(1-e) down matter modulo 4.
inline __attribute__((noinline)) void reduce_large(float x, float &r, int32_t &quadrant) {
  constexpr uint32_t kTwoOverPi[] = {0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
                                     0xDB629599u, 0x3C439041u, 0xFE5163ABu, 0xDEBBC561u};
  typedef unsigned __int128 Wide;
  const uint32_t u = bit_cast<uint32_t>(x);
  const uint32_t skip = ((u >> 23) & 0xFFu) - 152u;  // e - 2
  const uint32_t *word = kTwoOverPi + (skip >> 5);
  Wide window = Wide(word[0]) << 96 | Wide(word[1]) << 64 | Wide(word[2]) << 32 | word[3];
  if (const uint32_t bit = skip & 31u) window = window << bit | word[4] >> (32u - bit);
  const Wide turns = window * ((u & 0x007FFFFFu) | 0x00800000u);  // fixed point, 2 bits before the point
  const int64_t fraction = int64_t(uint64_t(turns >> 62));
  const int32_t q = int32_t(turns >> 126) + (fraction < 0 ? 1 : 0);
  const float value = float(double(fraction) * 0x1.921fb54442d18p-64);
  r = x < 0.0f ? -value : value;
  quadrant = (x < 0.0f ? -q : q) & 3;
}

template <int N> HG_INLINE Reduced<N> reduce(F32<N> x) {
  using F64 = Lanes<double, N>;
  const F64 wide = convert<double>(x);
  const F64 shifted = wide * splat<double, N>(0x1.45f306dc9c883p-1) + splat<double, N>(0x1.8p52);
  const F64 n = shifted - splat<double, N>(0x1.8p52);
  // The first product is exact: 28 bits of n, 25 of pi/2.
  const F64 r = wide - n * splat<double, N>(0x1.921fb5p0) - n * splat<double, N>(0x1.110b4611a6263p-26);
  Reduced<N> out = {convert<float>(r), convert<int32_t>(bits<int64_t>(shifted) & splat<int64_t, N>(3))};
  const auto large = abs(x) >= f32<N>(0x1p27f);
  if (any(large)) [[unlikely]] {
    float xs[N], rs[N];
    int32_t qs[N];
    store<float, N>(xs, x), store<float, N>(rs, out.r), store<int32_t, N>(qs, out.quadrant);
    for (int i = 0; i < N; ++i) {
      const float magnitude = __builtin_fabsf(xs[i]);
      if (magnitude >= 0x1p27f && magnitude <= 0x1.fffffep127f) reduce_large(xs[i], rs[i], qs[i]);
      else if (magnitude >= 0x1p27f) rs[i] = __builtin_nanf("");
    }
    out = {load<float, N>(rs), load<int32_t, N>(qs)};
  }
  return out;
}

template <int N> struct SinCos { F32<N> sin, cos; };
template <int N> HG_INLINE SinCos<N> sin_cos(F32<N> x) {
  const Reduced<N> reduced = reduce(x);
  const F32<N> r = reduced.r, z = r * r;
  const F32<N> s = fma(polynomial(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f) * z, r, r);
  const F32<N> c = fma(polynomial(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f) * z, z,
                       fma(z, f32<N>(-0.5f), f32<N>(1.0f)));
  const auto one = splat<int32_t, N>(1), two = splat<int32_t, N>(2);
  const auto swap = (reduced.quadrant & one) == one;
  const auto sin_sign = bits<uint32_t>((reduced.quadrant & two) << 30);
  const auto cos_sign = bits<uint32_t>(((reduced.quadrant + one) & two) << 30);
  return {bits<float>(bits<uint32_t>(select<float, N>(swap, c, s)) ^ sin_sign),
          bits<float>(bits<uint32_t>(select<float, N>(swap, s, c)) ^ cos_sign)};
}
template <int N> HG_INLINE F32<N> sin(F32<N> x) { return select<float, N>(x == f32<N>(0.0f), x, sin_cos(x).sin); }
template <int N> HG_INLINE F32<N> cos(F32<N> x) { return sin_cos(x).cos; }

// ---- tanh and erf ----------------------------------------------------------------------------------------------
template <int N> HG_INLINE F32<N> tanh(F32<N> x) {
  const F32<N> t = abs(x), z = x * x;
  const F32<N> near = fma(polynomial(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                     -3.33332819422e-1f) * z, x, x);
  const F32<N> far = f32<N>(1.0f) - f32<N>(2.0f) / (exp(t + t) + f32<N>(1.0f));
  const F32<N> out = select<float, N>(t < f32<N>(0.625f), near, copy_sign(far, x));
  return select<float, N>(x == x, out, x);
}

template <int N> HG_INLINE F32<N> erf(F32<N> x) {
  const F32<N> t = abs(x), s = x * x;
  F32<N> r = fma(f32<N>(-1.72853470e-5f), t, f32<N>(3.83197126e-4f));
  const F32<N> u = fma(f32<N>(-3.88396438e-3f), t, f32<N>(2.42546219e-2f));
  r = fma(r, s, u);
  r = fma(r, t, f32<N>(-1.06777877e-1f));
  r = fma(r, t, f32<N>(-6.34846687e-1f));
  r = fma(r, t, f32<N>(-1.28717512e-1f));
  r = fma(r, t, -t);
  const F32<N> far = copy_sign(f32<N>(1.0f) - exp(r), x);
  const F32<N> near = fma(polynomial(s, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f,
                                     -3.76125336e-1f, 1.28379166e-1f), x, x);
  const F32<N> out = select<float, N>(t > f32<N>(0.927734375f), far, near);
  return select<float, N>(x == x, out, x);
}

// ---- one number ------------------------------------------------------------------------------------------------
#define HG_SCALAR(name) HG_INLINE float name(float x) { return first(name(splat<float, 4>(x))); }
HG_SCALAR(exp)
HG_SCALAR(log)
HG_SCALAR(sin)
HG_SCALAR(cos)
HG_SCALAR(tanh)
HG_SCALAR(erf)
#undef HG_SCALAR

}  // namespace hg
