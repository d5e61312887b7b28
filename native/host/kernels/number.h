// f16 and bf16 as storage: arithmetic is always in f32. Narrowing rounds to nearest, ties to even.
//
// Intrinsics with a full mask stand where g++ 12 warns about the plain ones.
#pragma once
#include "vector.h"

namespace hg {

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };

// Integer forms, the same results as the instructions: used where the level has none.
template <int N> HG_INLINE Lanes<float, N> widen_f16(Lanes<uint32_t, N> h) {
  using U = Lanes<uint32_t, N>;
  const U sign = (h & splat<uint32_t, N>(0x8000u)) << 16;
  const U magnitude = h & splat<uint32_t, N>(0x7FFFu);
  const U normal = (magnitude << 13) + splat<uint32_t, N>(112u << 23);
  const U special = (magnitude << 13) | splat<uint32_t, N>(0x7F800000u);
  const U quiet = special | splat<uint32_t, N>(0x00400000u);
  const Lanes<float, N> tiny = convert<float>(bits<int32_t>(magnitude)) * splat<float, N>(0x1p-24f);
  U out = select<uint32_t, N>(magnitude < splat<uint32_t, N>(0x0400u), bits<uint32_t>(tiny), normal);
  out = select<uint32_t, N>(magnitude >= splat<uint32_t, N>(0x7C00u), special, out);
  out = select<uint32_t, N>(magnitude > splat<uint32_t, N>(0x7C00u), quiet, out);
  return bits<float>(out | sign);
}
template <int N> HG_INLINE Lanes<uint32_t, N> narrow_f16(Lanes<float, N> x) {
  using U = Lanes<uint32_t, N>;
  const U all = bits<uint32_t>(x);
  const U sign = (all & splat<uint32_t, N>(0x80000000u)) >> 16;
  const U magnitude = all & splat<uint32_t, N>(0x7FFFFFFFu);
  // Normal: the carry of the rounding may reach infinity, as it should. Tiny: an addition rounds at bit 2^-24.
  const U odd = (magnitude >> 13) & splat<uint32_t, N>(1u);
  const U normal = (magnitude - splat<uint32_t, N>((112u << 23) - 0xFFFu) + odd) >> 13;
  const U tiny = bits<uint32_t>(bits<float>(magnitude) + splat<float, N>(0.5f)) - splat<uint32_t, N>(0x3F000000u);
  const U nan = splat<uint32_t, N>(0x7E00u) | ((magnitude >> 13) & splat<uint32_t, N>(0x03FFu));
  U out = select<uint32_t, N>(magnitude < splat<uint32_t, N>(113u << 23), tiny, normal);
  out = select<uint32_t, N>(magnitude >= splat<uint32_t, N>(143u << 23), splat<uint32_t, N>(0x7C00u), out);
  out = select<uint32_t, N>(magnitude > splat<uint32_t, N>(0x7F800000u), nan, out);
  return out | sign;
}
template <int N> HG_INLINE Lanes<uint32_t, N> narrow_bf16(Lanes<float, N> x) {
  using U = Lanes<uint32_t, N>;
  const U all = bits<uint32_t>(x);
  const U rounded = (all + splat<uint32_t, N>(0x7FFFu) + ((all >> 16) & splat<uint32_t, N>(1u))) >> 16;
  const U nan = (all >> 16) | splat<uint32_t, N>(0x0040u);
  const U magnitude = all & splat<uint32_t, N>(0x7FFFFFFFu);
  return select<uint32_t, N>(magnitude > splat<uint32_t, N>(0x7F800000u), nan, rounded);
}

// ---- N stored numbers as f32 and back ---------------------------------------------------------------------------
template <int N> HG_INLINE Lanes<uint32_t, N> load_u16(const uint16_t *p) {
  if constexpr (!kFits<uint32_t, N>) return {load_u16<N / 2>(p), load_u16<N / 2>(p + N / 2)};
  else return {__builtin_convertvector((load<uint16_t, N>(p).v), typename Lanes<uint32_t, N>::Register)};
}
template <int N> HG_INLINE void store_u16(uint16_t *p, Lanes<uint32_t, N> x) {
  if constexpr (!kFits<uint32_t, N>) {
    store_u16<N / 2>(p, x.lo);
    store_u16<N / 2>(p + N / 2, x.hi);
  } else {
    store<uint16_t, N>(p, {__builtin_convertvector(x.v, typename Lanes<uint16_t, N>::Register)});
  }
}

template <int N = 16> HG_INLINE Lanes<float, N> load_as_f32(const float *p) { return load<float, N>(p); }
template <int N = 16> HG_INLINE Lanes<float, N> load_as_f32(const bf16 *p) {
  return bits<float>(load_u16<N>(reinterpret_cast<const uint16_t *>(p)) << 16);
}
template <int N = 16> HG_INLINE Lanes<float, N> load_as_f32(const f16 *p) {
  if constexpr (!kFits<float, N>) {
    return {load_as_f32<N / 2>(p), load_as_f32<N / 2>(p + N / 2)};
  }
#if defined(__AVX512F__)
  else if constexpr (N == 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
    return {(typename Lanes<float, N>::Register)_mm512_maskz_cvtph_ps(0xFFFF, halves)};
  }
#endif
#if defined(__F16C__)
  else if constexpr (N == 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return {(typename Lanes<float, N>::Register)_mm256_cvtph_ps(halves)};
  }
#endif
  else return widen_f16(load_u16<N>(reinterpret_cast<const uint16_t *>(p)));
}

template <int N = 16> HG_INLINE void store_f32_as(float *p, Lanes<float, N> x) { store<float, N>(p, x); }
template <int N = 16> HG_INLINE void store_f32_as(bf16 *p, Lanes<float, N> x) {
  store_u16<N>(reinterpret_cast<uint16_t *>(p), narrow_bf16(x));
}
template <int N = 16> HG_INLINE void store_f32_as(f16 *p, Lanes<float, N> x) {
  if constexpr (!kFits<float, N>) {
    store_f32_as<N / 2>(p, x.lo);
    store_f32_as<N / 2>(p + N / 2, x.hi);
  }
#if defined(__AVX512F__)
  else if constexpr (N == 16) {
    const __m256i halves = _mm512_maskz_cvtps_ph(0xFFFF, (__m512)x.v, _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), halves);
  }
#endif
#if defined(__F16C__)
  else if constexpr (N == 8)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph((__m256)x.v, _MM_FROUND_TO_NEAREST_INT));
#endif
  else store_u16<N>(reinterpret_cast<uint16_t *>(p), narrow_f16(x));
}

// One number; the same bits as a lane of the vector forms.
HG_INLINE float to_f32(float x) { return x; }
HG_INLINE float to_f32(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
HG_INLINE float to_f32(f16 x) { return first(widen_f16(splat<uint32_t, 4>(x.bits))); }
template <class T> HG_INLINE T from_f32(float x);
template <> HG_INLINE float from_f32<float>(float x) { return x; }
template <> HG_INLINE bf16 from_f32<bf16>(float x) { return {uint16_t(first(narrow_bf16(splat<float, 4>(x))))}; }
template <> HG_INLINE f16 from_f32<f16>(float x) { return {uint16_t(first(narrow_f16(splat<float, 4>(x))))}; }

// The first `count` of 16 numbers, zeros behind them; touches no other byte.
template <class T> HG_INLINE F32x16 load_tail_as_f32(const T *p, int count) {
  float lanes[16] = {};
  for (int i = 0; i < count; ++i) lanes[i] = to_f32(p[i]);
  return load(lanes);
}
template <class T> HG_INLINE void store_tail_f32_as(T *p, F32x16 x, int count) {
  float lanes[16];
  store<float, 16>(lanes, x);
  for (int i = 0; i < count; ++i) p[i] = from_f32<T>(lanes[i]);
}

}  // namespace hg
