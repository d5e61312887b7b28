// out[t, n] = sum_k x[t, k] weight[n, k] (+ bias[n]), in f32 on the weights' exact values.
//
// Lane k mod 16 of a dot product is one chain of fused multiply-adds in ascending k; the 16 lanes are folded by
// `sum`, then the bias is added. `few` (one to three rows: weights are decoded in registers) and `many` (weights of
// a tile are decoded once into a buffer) are two loop nests around that one order and give the same bits.
#include "kernel.h"
#include "weights.h"

namespace {
using hg::F32x16;

struct Linear {
  const float *x;         // [rows, depth], rows x_stride apart
  const uint8_t *weight;  // [outputs] rows, weight_stride bytes apart
  const float *bias;      // [outputs] or null
  float *out;             // [rows, outputs]
  uint64_t x_stride, weight_stride;
  uint32_t rows, depth, outputs;
};

constexpr uint32_t kFewOutputs = 16;   // a block of `few`
constexpr uint32_t kManyOutputs = 8;   // a block of `many`
constexpr uint32_t kManyRows = 48;
constexpr uint32_t kDepth = 640;       // weights decoded at a time: 8 x 640 f32 are 20 KiB and stay in the first cache

HG_INLINE float with_bias(const Linear &p, float y, uint64_t n) { return p.bias ? y + p.bias[n] : y; }
__attribute__((noinline)) void padded(const float *x, int count, float *out) {
  for (int i = 0; i < 32; ++i) out[i] = i < count ? x[i] : 0.0f;
}

// Rows are short and several are read at once, which the hardware's prefetchers follow badly: ask for the tile after
// this one (seen 2026-11-30 on Zen 3: f32 from 8 to 16 GB/s). A prefetch never faults.
template <class W> HG_INLINE void prefetch(const uint8_t *p) {
  for (int at = 0; at < W::kBytes; at += 64) __builtin_prefetch(p + at);
}

// ---- few rows --------------------------------------------------------------------------------------------------
// Outputs [n, n + Outputs) below `end` of rows [t, t + Rows); what lies beyond `end` repeats the last output.
template <class W, int Outputs, int Rows>
HG_INLINE void dot_tile(const Linear &p, uint64_t n, uint64_t end, uint64_t t) {
  const uint8_t *w[Outputs];
  const float *x[Rows];
  F32x16 acc[Outputs][Rows];
#pragma GCC unroll 8
  for (int i = 0; i < Outputs; ++i) w[i] = p.weight + hg::min_of(n + i, end - 1) * p.weight_stride;
#pragma GCC unroll 8
  for (int j = 0; j < Rows; ++j) x[j] = p.x + (t + j) * p.x_stride;
#pragma GCC unroll 8
  for (int i = 0; i < Outputs; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < Rows; ++j) acc[i][j] = hg::splat(0.0f);
  const uint64_t blocks = p.depth / 32;
  for (uint64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 8
    for (int i = 0; i < Outputs; ++i) {
      const hg::Pair v = W::block(w[i], b);
      prefetch<W>(w[i] + Outputs * p.weight_stride + b * W::kBytes);
#pragma GCC unroll 8
      for (int j = 0; j < Rows; ++j)
        acc[i][j] = hg::fma(v.hi, hg::load(x[j] + 32 * b + 16), hg::fma(v.lo, hg::load(x[j] + 32 * b), acc[i][j]));
    }
  }
  if constexpr (!W::kWholeBlocks) {
    if (const int rest = int(p.depth % 32)) {
      float ws[32], xs[32];
      for (int j = 0; j < Rows; ++j) {
        padded(x[j] + 32 * blocks, rest, xs);
        for (int i = 0; i < Outputs; ++i) {
          W::tail(w[i], blocks, rest, ws);
          acc[i][j] = hg::fma(hg::load(ws + 16), hg::load(xs + 16), hg::fma(hg::load(ws), hg::load(xs), acc[i][j]));
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Outputs; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < Rows; ++j)
      if (n + i < end) p.out[(t + j) * p.outputs + n + i] = with_bias(p, hg::sum(acc[i][j]), n + i);
}

template <class W, int Outputs, int Rows> void dot_tiles(const Linear &p, hg::Range n, uint64_t t) {
  for (uint64_t at = n.begin; at < n.end; at += Outputs) dot_tile<W, Outputs, Rows>(p, at, n.end, t);
}

template <class W> void few(const Linear &p, uint32_t first, uint32_t last) {
  for (uint32_t block = first; block < last; ++block) {
    const hg::Range n = hg::items(block, kFewOutputs, p.outputs);
    uint64_t t = 0;
    for (; t + 3 <= p.rows; t += 3) dot_tiles<W, 2, 3>(p, n, t);
    if (p.rows - t == 2) dot_tiles<W, 2, 2>(p, n, t);
    if (p.rows - t == 1) dot_tiles<W, 4, 1>(p, n, t);
  }
}

// ---- many rows -------------------------------------------------------------------------------------------------
// One register of each accumulator at a time, in 16 / kLanes passes: 4 x 3 accumulators, 3 rows and 1 weight fill 16
// registers, 4 x 6 most of 32.
constexpr int kLanes = hg::kRegisterBytes / 4;
constexpr int kTileOutputs = 4;
constexpr int kTileRows = hg::kRegisterBytes == 64 ? 6 : 3;

struct Tile {
  alignas(64) float weights[kManyOutputs][kDepth];
  alignas(64) float sums[kManyRows][kManyOutputs][16];
};
struct Rows {  // consecutive rows of x, from the tile's first k on
  const float *x;
  uint64_t stride, depth;
};

// Adds the tile's depth to Count x kTileOutputs sums, lanes [lane, lane + kLanes).
template <int Count> HG_INLINE void accumulate(const Rows &rows, Tile &tile, uint64_t row, uint64_t n, int lane) {
  using Part = hg::Lanes<float, kLanes>;
  Part acc[kTileOutputs][Count];
#pragma GCC unroll 8
  for (int i = 0; i < kTileOutputs; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j) acc[i][j] = hg::load<float, kLanes>(tile.sums[row + j][n + i] + lane);
  const float *w = tile.weights[n] + lane, *x = rows.x + row * rows.stride + lane;
  uint64_t k = 0;
  for (; k + 16 <= rows.depth; k += 16) {
    Part xs[Count];
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j) xs[j] = hg::load<float, kLanes>(x + j * rows.stride + k);
#pragma GCC unroll 8
    for (int i = 0; i < kTileOutputs; ++i) {
      const Part ws = hg::load<float, kLanes>(w + i * kDepth + k);
#pragma GCC unroll 8
      for (int j = 0; j < Count; ++j) acc[i][j] = hg::fma(ws, xs[j], acc[i][j]);
    }
  }
  if (k < rows.depth) {  // missing lanes add 0 * 0, as in `few`
    float xs[32];
    for (int j = 0; j < Count; ++j) {
      padded(x - lane + j * rows.stride + k, int(rows.depth - k), xs);
      for (int i = 0; i < kTileOutputs; ++i)
        acc[i][j] = hg::fma(hg::load<float, kLanes>(w + i * kDepth + k), hg::load<float, kLanes>(xs + lane), acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileOutputs; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j) hg::store<float, kLanes>(tile.sums[row + j][n + i] + lane, acc[i][j]);
}

template <int Count> void accumulate_outputs(const Rows &rows, Tile &tile, uint64_t row) {
  for (uint64_t n = 0; n < kManyOutputs; n += kTileOutputs)
    for (int lane = 0; lane < 16; lane += kLanes) accumulate<Count>(rows, tile, row, n, lane);
}

template <class W> void many_tile(const Linear &p, Tile &tile, hg::Range n, hg::Range t) {
  const uint64_t rows = t.end - t.begin, outputs = n.end - n.begin;
  memset(tile.sums, 0, rows * sizeof tile.sums[0]);
  for (uint64_t k = 0; k < p.depth; k += kDepth) {
    const uint64_t to = hg::min_of(k + kDepth, p.depth);
    for (uint64_t i = 0; i < outputs; ++i)
      hg::decode<W>(p.weight + (n.begin + i) * p.weight_stride, uint32_t(k), uint32_t(to), tile.weights[i]);
    for (uint64_t i = outputs; i < kManyOutputs; ++i) memset(tile.weights[i], 0, sizeof tile.weights[i]);
    const Rows x = {p.x + t.begin * p.x_stride + k, p.x_stride, to - k};
    uint64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) accumulate_outputs<kTileRows>(x, tile, row);
    for (; row < rows; ++row) accumulate_outputs<1>(x, tile, row);
  }
  for (uint64_t j = 0; j < rows; ++j)
    for (uint64_t i = 0; i < outputs; ++i)
      p.out[(t.begin + j) * p.outputs + n.begin + i] = with_bias(p, hg::sum(hg::load(tile.sums[j][i])), n.begin + i);
}

template <class W> void many(const Linear &p, uint32_t first, uint32_t last) {
  Tile tile;
  const uint32_t row_blocks = (p.rows + kManyRows - 1) / kManyRows;
  for (uint32_t block = first; block < last; ++block)
    many_tile<W>(p, tile, hg::items(block / row_blocks, kManyOutputs, p.outputs),
                 hg::items(block % row_blocks, kManyRows, p.rows));
}
}  // namespace

HG_POINTERS(Linear, x, weight, bias, out)
#define HG_LINEAR(layout, W) \
  hg::function<few<W>>("linear_" layout "_few"), hg::function<many<W>>("linear_" layout "_many")
HG_MODULE("linear", HG_LINEAR("f32", hg::Plain<float>), HG_LINEAR("bf16", hg::Plain<hg::bf16>),
          HG_LINEAR("f16", hg::Plain<hg::f16>), HG_LINEAR("q8_0", hg::Q8_0), HG_LINEAR("q4_1", hg::Q4_1))
