// out[t, n] = sum_k x[t, k] weight[n, k] (+ bias[n]), in f32 on the weights' exact values.
//
// Lane k mod 16 of a dot product is one chain of fused multiply-adds in ascending k; the 16 lanes are folded by `sum`,
// then the bias is added. A block of the grid is kOutputs outputs of kRows rows. Up to kGroup rows take the weights as
// they are decoded, in registers; more read them from a buffer that is decoded once. Both follow that one order and
// give the same bits.
#include "kernel.h"
#include "weights.h"

namespace {
using hg::F32x16;

struct Linear {
  const float *x;         // [rows, depth], rows x_stride apart
  const uint8_t *weight;  // [outputs] rows, weight_stride bytes apart
  const float *bias;      // [outputs] or null
  const int32_t *real;    // [1] rows, or null
  float *out;             // [rows, outputs]
  uint64_t x_stride, weight_stride;
  uint32_t rows, depth, outputs;
};

constexpr bool kWide = hg::kRegisterBytes == 64;  // 32 registers, each holds all lanes
constexpr uint32_t kOutputs = 8;
constexpr uint32_t kRows = 48;
constexpr uint32_t kDepth = 640;       // weights decoded at a time: 8 x 640 f32 are 20 KiB and stay in the first cache
constexpr int kGroup = kWide ? 6 : 3;  // rows that are computed together

__attribute__((noinline)) void padded(const float *x, int count, float *out) {
  for (int i = 0; i < 32; ++i) out[i] = i < count ? x[i] : 0.0f;
}

// Folds the lanes of Outputs products of row t from output n on, and writes those below `end`.
template <int Outputs> HG_INLINE void write_sums(const Linear &p, uint64_t t, uint64_t n, uint64_t end, const F32x16 *acc) {
  float *out = p.out + t * p.outputs;
  if constexpr (Outputs % 4 == 0) {
#pragma GCC unroll 4
    for (int i = 0; i < Outputs; i += 4, n += 4) {
      hg::Lanes<float, 4> y = hg::sum4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
      if (n + 4 <= end) {
        if (p.bias) y = y + hg::load<float, 4>(p.bias + n);
        hg::store<float, 4>(out + n, y);
      } else if (n < end) {
        if (p.bias) y = y + hg::load_tail<float, 4>(p.bias + n, int(end - n));
        hg::store_tail<float, 4>(out + n, y, int(end - n));
      }
    }
  } else {
    for (int i = 0; i < Outputs && n + i < end; ++i) out[n + i] = hg::sum(acc[i]) + (p.bias ? p.bias[n + i] : 0.0f);
  }
}

// ---- weights decoded in registers ------------------------------------------------------------------------------
// Outputs [n, n + Outputs) below `end` of rows [t, t + Rows); what lies beyond `end` repeats the last output.
template <class W, int Outputs, int Rows>
HG_INLINE void dot_tile(const Linear &p, uint64_t n, uint64_t end, uint64_t t) {
  const uint8_t *w[Outputs];
  const float *x[Rows];
  F32x16 acc[Rows][Outputs];
#pragma GCC unroll 8
  for (int i = 0; i < Outputs; ++i) w[i] = p.weight + hg::min_of(n + i, end - 1) * p.weight_stride;
#pragma GCC unroll 8
  for (int j = 0; j < Rows; ++j) x[j] = p.x + (t + j) * p.x_stride;
#pragma GCC unroll 8
  for (int j = 0; j < Rows; ++j)
#pragma GCC unroll 8
    for (int i = 0; i < Outputs; ++i) acc[j][i] = hg::splat(0.0f);
  const uint64_t blocks = p.depth / 32;
  // Several short rows are read at once, which the hardware's prefetchers follow badly: ask for the tile after this one
  // (seen 2026-11-30 on Zen 3: f32 from 8 to 16 GB/s). A prefetch never faults.
  const uint8_t *ahead = w[0] + Outputs * p.weight_stride;
  hg::Scales<W, Outputs> scales;
  for (uint64_t first = 0; first < blocks; first += hg::kScaledBlocks) {
    const uint64_t count = hg::min_of(hg::kScaledBlocks, blocks - first);
    scales.read(w, first, count);
    for (uint64_t b = 0, k = 32 * first; b < count; ++b, k += 32, ahead += Outputs * W::kBytes) {
#pragma GCC unroll 16
      for (int at = 0; at < Outputs * W::kBytes; at += 64) __builtin_prefetch(ahead + at);
#pragma GCC unroll 8
      for (int i = 0; i < Outputs; ++i) {
        const hg::Pair v = W::block(w[i], first + b, scales.of[i] + W::kScales * b);
#pragma GCC unroll 8
        for (int j = 0; j < Rows; ++j)
          acc[j][i] = hg::fma(v.hi, hg::load(x[j] + k + 16), hg::fma(v.lo, hg::load(x[j] + k), acc[j][i]));
      }
    }
  }
  if constexpr (!W::kWholeBlocks) {
    if (const int rest = int(p.depth % 32)) {
      float ws[32], xs[32];
      for (int j = 0; j < Rows; ++j) {
        padded(x[j] + 32 * blocks, rest, xs);
        for (int i = 0; i < Outputs; ++i) {
          W::tail(w[i], blocks, rest, ws);
          acc[j][i] = hg::fma(hg::load(ws + 16), hg::load(xs + 16), hg::fma(hg::load(ws), hg::load(xs), acc[j][i]));
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < Rows; ++j) write_sums<Outputs>(p, t + j, n, end, acc[j]);
}

template <class W, int Rows> void dot_tiles(const Linear &p, hg::Range n, uint64_t t) {
  constexpr int kTile = kWide ? (Rows == 1 ? 8 : 4) : (Rows == 1 ? 4 : 2);
  for (uint64_t at = n.begin; at < n.end; at += kTile) dot_tile<W, kTile, Rows>(p, at, n.end, t);
}
template <class W, int Rows = kGroup> HG_INLINE void few(const Linear &p, hg::Range n, hg::Range t) {
  if (t.end - t.begin == Rows) return dot_tiles<W, Rows>(p, n, t.begin);
  if constexpr (Rows > 1) few<W, Rows - 1>(p, n, t);
}

// ---- weights decoded into a buffer -----------------------------------------------------------------------------
// One register of each accumulator at a time, in 16 / kLanes passes: 4 x 3 accumulators, 3 rows and 1 weight fill 16
// registers, 4 x 6 most of 32.
constexpr int kLanes = hg::kRegisterBytes / 4;
constexpr int kTile = 4;

struct Tile {
  alignas(64) float weights[kOutputs][kDepth];
  alignas(64) float sums[kRows][kOutputs][16];
};
struct Part { hg::Range outputs, rows, depth; };

// Count x kTile products over the tile's depth. Between the tiles of a deep row the lanes wait in `sums`.
template <int Count> HG_INLINE void accumulate(const Linear &p, Tile &tile, const Part &part, uint64_t row, uint64_t n) {
  F32x16 acc[Count][kTile];
  for (int lane = 0; lane < 16; lane += kLanes) {
    using Lane = hg::Lanes<float, kLanes>;
    Lane sum[Count][kTile];
    const float *w = tile.weights[n] + lane, *x = p.x + (part.rows.begin + row) * p.x_stride + part.depth.begin + lane;
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i)
        sum[j][i] = part.depth.begin ? hg::load<float, kLanes>(tile.sums[row + j][n + i] + lane) : hg::splat<float, kLanes>(0.0f);
    const uint64_t depth = part.depth.end - part.depth.begin;
    uint64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
      Lane xs[Count];
#pragma GCC unroll 8
      for (int j = 0; j < Count; ++j) xs[j] = hg::load<float, kLanes>(x + j * p.x_stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) {
        const Lane ws = hg::load<float, kLanes>(w + i * kDepth + k);
#pragma GCC unroll 8
        for (int j = 0; j < Count; ++j) sum[j][i] = hg::fma(ws, xs[j], sum[j][i]);
      }
    }
    if (k < depth) {  // missing lanes add 0 * 0, as in `few`
      float xs[32];
#pragma GCC unroll 8
      for (int j = 0; j < Count; ++j) {
        padded(x - lane + j * p.x_stride + k, int(depth - k), xs);
#pragma GCC unroll 8
        for (int i = 0; i < kTile; ++i)
          sum[j][i] = hg::fma(hg::load<float, kLanes>(w + i * kDepth + k), hg::load<float, kLanes>(xs + lane), sum[j][i]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) {
        if constexpr (kLanes == 16) acc[j][i] = sum[j][i];
        else hg::store<float, kLanes>(reinterpret_cast<float *>(&acc[j][i]) + lane, sum[j][i]);
      }
  }
#pragma GCC unroll 8
  for (int j = 0; j < Count; ++j) {
    if (part.depth.end == p.depth) write_sums<kTile>(p, part.rows.begin + row + j, part.outputs.begin + n, part.outputs.end, acc[j]);
    else
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) hg::store<float, 16>(tile.sums[row + j][n + i], acc[j][i]);
  }
}

template <int Count = kGroup> void accumulate_group(const Linear &p, Tile &tile, const Part &part, uint64_t row, uint64_t count) {
  if constexpr (Count > 1)
    if (count < Count) return accumulate_group<Count - 1>(p, tile, part, row, count);
  for (uint64_t n = 0; n < part.outputs.end - part.outputs.begin; n += kTile) accumulate<Count>(p, tile, part, row, n);
}

template <class W> void many(const Linear &p, Tile &tile, hg::Range n, hg::Range t) {
  const uint64_t rows = t.end - t.begin, outputs = (n.end - n.begin + kTile - 1) / kTile * kTile;
  uint64_t k = 0;
  do {
    const Part part = {n, t, {k, hg::min_of(k + kDepth, p.depth)}};
    for (uint64_t i = 0; i < outputs; ++i) {  // what lies beyond the end repeats the last output
      const uint8_t *w = p.weight + hg::min_of(n.begin + i, n.end - 1) * p.weight_stride;
      for (uint64_t at = part.depth.begin / 32 * W::kBytes; at < part.depth.end / 32 * W::kBytes; at += 64)
        __builtin_prefetch(w + kOutputs * p.weight_stride + at);
      hg::decode<W>(w, uint32_t(part.depth.begin), uint32_t(part.depth.end), tile.weights[i]);
    }
    for (uint64_t row = 0, groups = (rows + kGroup - 1) / kGroup; groups > 0; --groups) {
      const uint64_t count = (rows - row + groups - 1) / groups;  // groups of about equal size
      accumulate_group(p, tile, part, row, count);
      row += count;
    }
    k += kDepth;
  } while (k < p.depth);
}

template <class W> void linear(const Linear &p, uint32_t first, uint32_t last) {
  Tile tile;
  const uint64_t real = hg::real_rows(p.real, p.rows), output_blocks = hg::blocks_of(p.outputs, kOutputs);
  const uint64_t row_blocks = hg::blocks_of(real, kRows);
  const hg::Range blocks =
      hg::share(first, last, output_blocks * hg::blocks_of(p.rows, kRows), output_blocks * row_blocks);
  for (uint64_t block = blocks.begin; block < blocks.end; ++block) {
    const hg::Range n = hg::items(block / row_blocks, kOutputs, p.outputs);
    const hg::Range t = hg::items(block % row_blocks, kRows, real);
    if (t.end - t.begin <= kGroup) few<W>(p, n, t);
    else many<W>(p, tile, n, t);
  }
}
}  // namespace

HG_POINTERS(Linear, x, weight, bias, real, out)
HG_MODULE("linear", hg::function<linear<hg::Plain<float>>>("linear_f32"),
          hg::function<linear<hg::Plain<hg::bf16>>>("linear_bf16"),
          hg::function<linear<hg::Plain<hg::f16>>>("linear_f16"), hg::function<linear<hg::Q8_0>>("linear_q8_0"),
          hg::function<linear<hg::Q4_1>>("linear_q4_1"))
