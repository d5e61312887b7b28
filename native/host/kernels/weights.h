// Weight layouts: how 32 consecutive weights of a row become two vectors of 16 f32.
//
// Quantised blocks are those of GGUF. Their scale has 11 significant bits and their quants at most 8, so d * q is
// exact in f32 and `fma(d, q, m)` is d * q + m rounded once, on every level: the values that a reader of the file
// computes.
#pragma once
#include "number.h"

namespace hg {

// Lanes [lane, lane + N) of a block's two vectors.
template <int N> struct Pair { Lanes<float, N> lo, hi; };

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

// T is float, bf16 or f16. A row may end inside a block: `tail` gives its last `count` weights, zeros behind them.
template <class T> struct Plain {
  static constexpr int kBytes = 32 * sizeof(T);
  static constexpr int kScales = 0;
  static constexpr bool kWholeBlocks = false;
  template <int N>
  static HG_INLINE Pair<N> block(const uint8_t *row, uint64_t index, const float *, int lane = 0) {
    const T *p = reinterpret_cast<const T *>(row) + 32 * index + lane;
    return {load_as_f32<N>(p), load_as_f32<N>(p + 16)};
  }
  static __attribute__((noinline)) void tail(const uint8_t *row, uint64_t index, int count, float *out) {
    const T *p = reinterpret_cast<const T *>(row) + 32 * index;
    for (int i = 0; i < 32; ++i) out[i] = i < count ? to_f32(p[i]) : 0.0f;
  }
};

struct Q8_0 {  // f16 d, int8 q[32]: w = d q
  using BlockScales = uint16_t;
  static constexpr int kBytes = 34;
  static constexpr int kScales = 1;
  static constexpr bool kWholeBlocks = true;
  template <int N>
  static HG_INLINE Pair<N> block(const uint8_t *row, uint64_t index, const float *scales, int lane = 0) {
    const Lanes<float, N> d = splat<float, N>(scales[0]);
    const int8_t *q = reinterpret_cast<const int8_t *>(row + kBytes * index + 2) + lane;
    return {d * convert<float>(widen_bytes<int8_t, N>(q)), d * convert<float>(widen_bytes<int8_t, N>(q + 16))};
  }
};

struct Q4_1 {  // f16 d, f16 m, 16 bytes: low nibbles are weights 0..15, high nibbles 16..31; w = d q + m
  using BlockScales = uint32_t;  // d and m
  static constexpr int kBytes = 20;
  static constexpr int kScales = 2;
  static constexpr bool kWholeBlocks = true;
  template <int N>
  static HG_INLINE Pair<N> block(const uint8_t *row, uint64_t index, const float *scales, int lane = 0) {
    const Lanes<float, N> d = splat<float, N>(scales[0]), m = splat<float, N>(scales[1]);
    const Lanes<int32_t, N> low = widen_bytes<uint8_t, N>(row + kBytes * index + 4 + lane), high = low >> 4;
#if defined(__AVX512F__)  // the block's sixteen values once, each lane takes the one its low four bits name
    const F32x16 quants = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
    const __m512 values = (__m512)fma(d, quants, m).v;
    return {{(F32x16::Register)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)low.v, values)},
            {(F32x16::Register)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)high.v, values)}};
#else
    return {fma(d, convert<float>(low & splat<int32_t, N>(15)), m), fma(d, convert<float>(high), m)};
#endif
  }
};

// The scales of a few blocks of Rows rows as f32: they stand at the blocks' beginnings, and converting them together
// takes a fraction of the instructions that it takes block by block.
constexpr uint64_t kScaledBlocks = 64;
template <class W, int Rows> struct Scales {
  alignas(64) float of[Rows][W::kScales * kScaledBlocks];

#if defined(__AVX2__) && !defined(__AVX512F__)
  // Blocks [first, first + count), at most kScaledBlocks. Eight halves at a time come straight into a register: g++ 12
  // gathers copies of them in integer registers and then waits for their way through memory.
  HG_INLINE void read(const uint8_t *const *rows, uint64_t first, uint64_t count) {
    if constexpr (W::kScales > 0) {
      constexpr uint64_t kTogether = 8 / W::kScales;
      if (count < kTogether) {
        for (int i = 0; i < Rows; ++i) store<float, 8>(of[i], eight<kTogether>(rows[i] + W::kBytes * first, count));
        return;
      }
      for (uint64_t b = 0; b < count; b += kTogether) {
        const uint64_t at = b + kTogether <= count ? b : count - kTogether;  // the last ones: some of them once more
#pragma GCC unroll 4
        for (int i = 0; i < Rows; ++i)
          store<float, 8>(of[i] + W::kScales * at, eight<kTogether>(rows[i] + W::kBytes * (first + at), kTogether));
      }
    }
  }

 private:
  // The scales of `count` blocks from p on, then the last one's again.
  template <uint64_t Blocks> static HG_INLINE Lanes<float, 8> eight(const uint8_t *p, uint64_t count) {
    typedef typename W::BlockScales Halves __attribute__((vector_size(16)));
    Halves halves;
#pragma GCC unroll 8
    for (uint64_t b = 0; b < Blocks; ++b) {
      typename W::BlockScales scales;
      __builtin_memcpy(&scales, p + W::kBytes * (b < count ? b : count - 1), sizeof scales);
      halves[b] = scales;
    }
    return {(Lanes<float, 8>::Register)_mm256_cvtph_ps((__m128i)halves)};
  }
#else
  alignas(64) f16 halves[Rows][W::kScales * kScaledBlocks];

  // Blocks [first, first + count), at most kScaledBlocks.
  HG_INLINE void read(const uint8_t *const *rows, uint64_t first, uint64_t count) {
    if constexpr (W::kScales > 0) {
      for (int i = 0; i < Rows; ++i)
        for (uint64_t b = 0; b < count; ++b)
          __builtin_memcpy(halves[i] + W::kScales * b, rows[i] + W::kBytes * (first + b), W::kScales * sizeof(f16));
      // After all of them: a load that follows its stores at once would wait for them.
      for (int i = 0; i < Rows; ++i)
        for (uint64_t at = 0; at < W::kScales * count; at += 16)
          store<float, 16>(of[i] + at, load_as_f32(halves[i] + at));
    }
  }
#endif
};

// Weights [from, to) of a row into a buffer of whole blocks; `from` is a multiple of 32.
template <class W> HG_INLINE void decode(const uint8_t *row, uint32_t from, uint32_t to, float *out) {
  Scales<W, 1> scales;
  const uint64_t end = to / 32;
  for (uint64_t first = from / 32; first < end; first += kScaledBlocks) {
    const uint64_t count = end - first < kScaledBlocks ? end - first : kScaledBlocks;
    scales.read(&row, first, count);
    for (uint64_t b = 0; b < count; ++b, out += 32) {
      const auto v = W::template block<16>(row, first + b, scales.of[0] + W::kScales * b);
      store<float, 16>(out, v.lo);
      store<float, 16>(out + 16, v.hi);
    }
  }
  if constexpr (!W::kWholeBlocks)
    if (to % 32) W::tail(row, end, int(to % 32), out);
}

}  // namespace hg
