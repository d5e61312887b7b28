// Lanes<T, N>: N numbers that are computed together, the same lanes on every instruction-set level.
//
// A dot product keeps 16 partial sums on every level, held in one 512-bit, two 256-bit or four 128-bit registers,
// and folds them in one order (`sum`), so the order of accumulation is a property of the source and not of the
// register width. `fma` is one rounding where the level has it and two on `generic`; nothing else differs.
#pragma once
#include <stdint.h>

#if defined(__AVX2__) || defined(__SSE2__)
// Its allocation functions need malloc, which a freestanding <stdlib.h> (g++ 13) does not have: left out by their guards.
#define _MM_MALLOC_H_INCLUDED
#define __MM_MALLOC_H
#include <immintrin.h>
#endif

#define HG_INLINE inline __attribute__((always_inline))
#define HG_INLINE_LAMBDA __attribute__((always_inline))

namespace hg {

#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

template <class T, int N> constexpr bool kFits = N * int(sizeof(T)) <= kRegisterBytes;

template <class T, int N, bool = kFits<T, N>> struct Lanes {
  Lanes<T, N / 2> lo, hi;
};
template <class T, int N> struct Lanes<T, N, true> {
  typedef T Register __attribute__((vector_size(N * sizeof(T))));
  typedef T Memory __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
  Register v;
};

using F32x16 = Lanes<float, 16>;
using I32x16 = Lanes<int32_t, 16>;
using U32x16 = Lanes<uint32_t, 16>;

template <class To, class From> HG_INLINE To bit_cast(From x) { return __builtin_bit_cast(To, x); }

// ---- making, loading, storing ---------------------------------------------------------------------------------
template <class T, int N> HG_INLINE Lanes<T, N> splat(T x) {
  if constexpr (kFits<T, N>) return {x - typename Lanes<T, N>::Register{}};  // x - 0 keeps the sign of a zero
  else return {splat<T, N / 2>(x), splat<T, N / 2>(x)};
}
HG_INLINE F32x16 splat(float x) { return splat<float, 16>(x); }

template <class T, int N> HG_INLINE Lanes<T, N> load(const T *p) {
  if constexpr (kFits<T, N>) return {*reinterpret_cast<const typename Lanes<T, N>::Memory *>(p)};
  else return {load<T, N / 2>(p), load<T, N / 2>(p + N / 2)};
}
HG_INLINE F32x16 load(const float *p) { return load<float, 16>(p); }

template <class T, int N> HG_INLINE void store(T *p, Lanes<T, N> x) {
  if constexpr (kFits<T, N>) {
    *reinterpret_cast<typename Lanes<T, N>::Memory *>(p) = x.v;
  } else {
    store<T, N / 2>(p, x.lo);
    store<T, N / 2>(p + N / 2, x.hi);
  }
}

// The first `count` lanes from memory and zeros behind them; touches no other byte. 0 <= count <= N.
template <class T, int N> HG_INLINE Lanes<T, N> load_tail(const T *p, int count) {
  T lanes[N] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return load<T, N>(lanes);
}
HG_INLINE F32x16 load_tail(const float *p, int count) { return load_tail<float, 16>(p, count); }

template <class T, int N> HG_INLINE void store_tail(T *p, Lanes<T, N> x, int count) {
  T lanes[N];
  store<T, N>(lanes, x);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

// ---- arithmetic, comparison, selection ------------------------------------------------------------------------
#define HG_BINARY(op)                                                                              \
  template <class T, int N> HG_INLINE Lanes<T, N> operator op(Lanes<T, N> a, Lanes<T, N> b) {      \
    if constexpr (kFits<T, N>) return {a.v op b.v};                                                \
    else return {a.lo op b.lo, a.hi op b.hi};                                                      \
  }
HG_BINARY(+)
HG_BINARY(-)
HG_BINARY(*)
HG_BINARY(/)
HG_BINARY(&)
HG_BINARY(|)
HG_BINARY(^)
#undef HG_BINARY

template <class T, int N> HG_INLINE Lanes<T, N> operator-(Lanes<T, N> a) {
  if constexpr (kFits<T, N>) return {-a.v};
  else return {-a.lo, -a.hi};
}
template <class T, int N> HG_INLINE Lanes<T, N> operator~(Lanes<T, N> a) {
  if constexpr (kFits<T, N>) return {~a.v};
  else return {~a.lo, ~a.hi};
}
template <class T, int N> HG_INLINE Lanes<T, N> operator<<(Lanes<T, N> a, int by) {
  if constexpr (kFits<T, N>) return {a.v << by};
  else return {a.lo << by, a.hi << by};
}
template <class T, int N> HG_INLINE Lanes<T, N> operator>>(Lanes<T, N> a, int by) {
  if constexpr (kFits<T, N>) return {a.v >> by};
  else return {a.lo >> by, a.hi >> by};
}

// Masks are integers of the numbers' width: all bits set where true.
template <int Bytes> struct MaskOf;
template <> struct MaskOf<4> { using type = int32_t; };
template <> struct MaskOf<8> { using type = int64_t; };
template <class T, int N> using Mask = Lanes<typename MaskOf<sizeof(T)>::type, N>;

#define HG_COMPARE(op)                                                                             \
  template <class T, int N> HG_INLINE Mask<T, N> operator op(Lanes<T, N> a, Lanes<T, N> b) {       \
    if constexpr (kFits<T, N>) return {(typename Mask<T, N>::Register)(a.v op b.v)};               \
    else return {a.lo op b.lo, a.hi op b.hi};                                                      \
  }
HG_COMPARE(==)
HG_COMPARE(!=)
HG_COMPARE(<)
HG_COMPARE(<=)
HG_COMPARE(>)
HG_COMPARE(>=)
#undef HG_COMPARE

template <class T, int N> HG_INLINE Lanes<T, N> select(Mask<T, N> mask, Lanes<T, N> yes, Lanes<T, N> no) {
  if constexpr (kFits<T, N>) return {mask.v ? yes.v : no.v};
  else return {select<T, N / 2>(mask.lo, yes.lo, no.lo), select<T, N / 2>(mask.hi, yes.hi, no.hi)};
}
// A number that is not ordered with another (NaN) gives b, as in `a < b ? a : b`.
template <class T, int N> HG_INLINE Lanes<T, N> min(Lanes<T, N> a, Lanes<T, N> b) { return select<T, N>(a < b, a, b); }
template <class T, int N> HG_INLINE Lanes<T, N> max(Lanes<T, N> a, Lanes<T, N> b) { return select<T, N>(a > b, a, b); }

template <class To, class From, int N> HG_INLINE Lanes<To, N> bits(Lanes<From, N> x) {
  static_assert(sizeof(To) == sizeof(From));
  return bit_cast<Lanes<To, N>>(x);
}
template <class To, class From, int N> HG_INLINE Lanes<To, N> convert(Lanes<From, N> x) {  // by value, towards zero
  if constexpr (kFits<To, N> && kFits<From, N>) return {__builtin_convertvector(x.v, typename Lanes<To, N>::Register)};
  else if constexpr (kFits<From, N>) {
    typedef From Half __attribute__((vector_size(N / 2 * sizeof(From))));
    Half half[2];
    __builtin_memcpy(half, &x.v, sizeof half);
    return {convert<To>(Lanes<From, N / 2>{half[0]}), convert<To>(Lanes<From, N / 2>{half[1]})};
  } else if constexpr (kFits<To, N>) {
    typedef To Half __attribute__((vector_size(N / 2 * sizeof(To))));
    const Half half[2] = {convert<To>(x.lo).v, convert<To>(x.hi).v};
    Lanes<To, N> out;
    __builtin_memcpy(&out.v, half, sizeof half);
    return out;
  } else return {convert<To>(x.lo), convert<To>(x.hi)};
}
template <int N> HG_INLINE Lanes<float, N> abs(Lanes<float, N> x) {
  return bits<float>(bits<uint32_t>(x) & splat<uint32_t, N>(0x7FFFFFFFu));
}

// ---- fused multiply-add and square root ------------------------------------------------------------------------
HG_INLINE float fma(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
template <class Register> HG_INLINE Register fma_register(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Register) == 64) return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  else
#endif
#if defined(__FMA__)
  if constexpr (sizeof(Register) == 32) return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  else return (Register)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#else
  return a * b + c;
#endif
}
template <int N> HG_INLINE Lanes<float, N> fma(Lanes<float, N> a, Lanes<float, N> b, Lanes<float, N> c) {
  if constexpr (!kFits<float, N>) return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
  else return {fma_register(a.v, b.v, c.v)};
}

HG_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
HG_INLINE double sqrt(double x) { return __builtin_sqrt(x); }
template <class T, int N> HG_INLINE Lanes<T, N> sqrt(Lanes<T, N> x) {  // correctly rounded on every level
  if constexpr (!kFits<T, N>) {
    return {sqrt(x.lo), sqrt(x.hi)};
  } else {
    for (int i = 0; i < N; ++i) x.v[i] = sqrt(x.v[i]);
    return x;
  }
}
// 1 / sqrt(x): two correctly rounded steps, at most 1 ulp.
template <int N> HG_INLINE Lanes<float, N> rsqrt(Lanes<float, N> x) { return splat<float, N>(1.0f) / sqrt(x); }
HG_INLINE float rsqrt(float x) { return 1.0f / sqrt(x); }

// ---- across lanes, always in the same tree: i with i + N/2, then i + N/4, ... ----------------------------------
template <class T, int N> HG_INLINE Lanes<T, N / 2> halve_lo(Lanes<T, N> x) {
  if constexpr (!kFits<T, N>) return x.lo;
  else {
    Lanes<T, N / 2> out;
    __builtin_memcpy(&out.v, &x.v, sizeof out.v);
    return out;
  }
}
template <class T, int N> HG_INLINE Lanes<T, N / 2> halve_hi(Lanes<T, N> x) {
  if constexpr (!kFits<T, N>) return x.hi;
  else {
    Lanes<T, N / 2> out;
    __builtin_memcpy(&out.v, reinterpret_cast<const char *>(&x.v) + sizeof out.v, sizeof out.v);
    return out;
  }
}
template <class T, int N> HG_INLINE T sum(Lanes<T, N> x) {
  if constexpr (N == 2) return x.v[0] + x.v[1];
  else return sum(halve_lo(x) + halve_hi(x));
}
// The sums of four at once: the same tree, lanes of several numbers beside each other.
HG_INLINE Lanes<float, 4> sum4(F32x16 a, F32x16 b, F32x16 c, F32x16 d) {
#if defined(__AVX512F__)
  const auto halves = [](F32x16::Register x, F32x16::Register y) HG_INLINE_LAMBDA {  // 8 lanes of x, 8 of y
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  };
  const F32x16::Register ab = halves(a.v, b.v), cd = halves(c.v, d.v);
  const F32x16::Register four = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                                __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  const F32x16::Register two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  const F32x16::Register one = two + __builtin_shufflevector(two, two, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return {__builtin_shufflevector(one, one, 0, 4, 8, 12)};
#elif defined(__AVX2__)
  using Register = Lanes<float, 8>::Register;
  const auto halves = [](Register x, Register y) HG_INLINE_LAMBDA {  // 4 lanes of x, 4 of y
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15);
  };
  const Register ab = halves(a.lo.v + a.hi.v, b.lo.v + b.hi.v), cd = halves(c.lo.v + c.hi.v, d.lo.v + d.hi.v);
  const Register two = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +  // 2 lanes of a, c, b, d
                       __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  const Register one = two + __builtin_shufflevector(two, two, 1, 0, 3, 2, 5, 4, 7, 6);
  return {__builtin_shufflevector(one, one, 0, 4, 2, 6)};
#else
  const float sums[4] = {sum(a), sum(b), sum(c), sum(d)};
  return load<float, 4>(sums);
#endif
}
template <class T, int N> HG_INLINE T max_lane(Lanes<T, N> x) {
  if constexpr (N == 2) return x.v[0] > x.v[1] ? x.v[0] : x.v[1];
  else return max_lane(max(halve_lo(x), halve_hi(x)));
}
template <class T, int N> HG_INLINE T min_lane(Lanes<T, N> x) {
  if constexpr (N == 2) return x.v[0] < x.v[1] ? x.v[0] : x.v[1];
  else return min_lane(min(halve_lo(x), halve_hi(x)));
}
template <class T, int N> HG_INLINE T first(Lanes<T, N> x) {
  if constexpr (kFits<T, N>) return x.v[0];
  else return first(x.lo);
}
template <int N> HG_INLINE bool any(Lanes<int32_t, N> mask) {
  if constexpr (N == 2) return (mask.v[0] | mask.v[1]) != 0;
  else return any(halve_lo(mask) | halve_hi(mask));
}

}  // namespace hg
