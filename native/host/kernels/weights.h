// Weight layouts: how 32 consecutive weights of a row become two vectors of 16 f32.
//
// Quantised blocks are those of GGUF. Their scale has 11 significant bits and their quants at most 8, so d * q is
// exact in f32 and `fma(d, q, m)` is d * q + m rounded once, on every level: the values that a reader of the file
// computes.
#pragma once
#include "number.h"

namespace hg {

struct Pair { F32x16 lo, hi; };

// Sixteen bytes as integers. (g++ 12 splits the conversion from 8 to 32 bits in two, so the instruction is named.)
template <class Byte, int N = 16> HG_INLINE Lanes<int32_t, N> widen_bytes(const Byte *p) {
  [[maybe_unused]] constexpr bool is_signed = Byte(-1) < Byte(0);
  if constexpr (!kFits<int32_t, N>) return {widen_bytes<Byte, N / 2>(p), widen_bytes<Byte, N / 2>(p + N / 2)};
#if defined(__AVX512F__)
  else if constexpr (N == 16) {
    using Register = typename Lanes<int32_t, N>::Register;
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
    return {(Register)(is_signed ? _mm512_maskz_cvtepi8_epi32(0xFFFF, bytes)
                                 : _mm512_maskz_cvtepu8_epi32(0xFFFF, bytes))};
  }
#endif
#if defined(__AVX2__)
  else if constexpr (N == 8) {
    using Register = typename Lanes<int32_t, N>::Register;
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
    return {(Register)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes))};
  }
#endif
  else return {__builtin_convertvector((load<Byte, N>(p).v), typename Lanes<int32_t, N>::Register)};
}

HG_INLINE float half_at(const uint8_t *p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return to_f32(f16{h});
#endif
}

// T is float, bf16 or f16. A row may end inside a block: `tail` gives its last `count` weights, zeros behind them.
template <class T> struct Plain {
  static constexpr int kBytes = 32 * sizeof(T);
  static constexpr bool kWholeBlocks = false;
  static HG_INLINE Pair block(const uint8_t *row, uint64_t index) {
    const T *p = reinterpret_cast<const T *>(row) + 32 * index;
    return {load_as_f32(p), load_as_f32(p + 16)};
  }
  static __attribute__((noinline)) void tail(const uint8_t *row, uint64_t index, int count, float *out) {
    const T *p = reinterpret_cast<const T *>(row) + 32 * index;
    for (int i = 0; i < 32; ++i) out[i] = i < count ? to_f32(p[i]) : 0.0f;
  }
};

struct Q8_0 {  // f16 d, int8 q[32]: w = d q
  static constexpr int kBytes = 34;
  static constexpr bool kWholeBlocks = true;
  static HG_INLINE Pair block(const uint8_t *row, uint64_t index) {
    const uint8_t *p = row + kBytes * index;
    const F32x16 d = splat(half_at(p));
    const int8_t *q = reinterpret_cast<const int8_t *>(p + 2);
    return {d * convert<float>(widen_bytes(q)), d * convert<float>(widen_bytes(q + 16))};
  }
};

struct Q4_1 {  // f16 d, f16 m, 16 bytes: low nibbles are weights 0..15, high nibbles 16..31; w = d q + m
  static constexpr int kBytes = 20;
  static constexpr bool kWholeBlocks = true;
  static HG_INLINE Pair block(const uint8_t *row, uint64_t index) {
    const uint8_t *p = row + kBytes * index;
    const F32x16 d = splat(half_at(p)), m = splat(half_at(p + 2));
    const I32x16 packed = widen_bytes(p + 4);
    return {fma(d, convert<float>(packed & splat<int32_t, 16>(15)), m), fma(d, convert<float>(packed >> 4), m)};
  }
};

// Weights [from, to) of a row into a buffer of whole blocks; `from` is a multiple of 32.
template <class W> HG_INLINE void decode(const uint8_t *row, uint32_t from, uint32_t to, float *out) {
  uint32_t k = from;
  for (; k + 32 <= to; k += 32, out += 32) {
    const Pair v = W::block(row, k / 32);
    store<float, 16>(out, v.lo);
    store<float, 16>(out + 16, v.hi);
  }
  if constexpr (!W::kWholeBlocks)
    if (k < to) W::tail(row, k / 32, int(to - k), out);
}

}  // namespace hg
