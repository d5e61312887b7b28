// out[t, n] = sum_k x[t, k] weight[n, k] (+ bias[n]), in f32 on the weights' exact values.
//
// Lane k mod 16 of a dot product is one chain of fused multiply-adds in ascending k; the 16 lanes are folded by `sum`,
// then the bias is added. A block of the grid is kOutputs outputs of kRows rows. Up to kFew rows take the weights as
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
constexpr int kLanes = hg::kRegisterBytes / 4;  // of a register
constexpr int kGroup = kWide ? 6 : 3;           // rows that are computed together
constexpr int kFew = kLanes == 8 ? 8 : kGroup;
using Lane = hg::Lanes<float, kLanes>;

__attribute__((noinline)) void padded(const float *x, int count, float *out) {
  for (int i = 0; i < 32; ++i) out[i] = i < count ? x[i] : 0.0f;
}

// Folds the lanes of Outputs products of row t from output n on, and writes those below `end`.
template <int Outputs>
HG_INLINE void write_sums(const Linear &p, uint64_t t, uint64_t n, uint64_t end, const F32x16 *acc) {
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

// The same for output n of Rows rows from t on.
template <int Rows> HG_INLINE void write_column(const Linear &p, uint64_t t, uint64_t n, const F32x16 (*acc)[1]) {
#pragma GCC unroll 8
  for (int j = 0; j < Rows; j += 4) {
    const auto at = [&](int i) HG_INLINE_LAMBDA { return acc[j + i < Rows ? j + i : Rows - 1][0]; };
    hg::Lanes<float, 4> y = hg::sum4(at(0), at(1), at(2), at(3));
    if (p.bias) y = y + hg::splat<float, 4>(p.bias[n]);
    for (int i = 0; i < 4 && j + i < Rows; ++i) p.out[(t + j + i) * p.outputs + n] = y.v[i];
  }
}

// ---- weights decoded in registers ------------------------------------------------------------------------------
// Outputs [n, n + Outputs) below `end` of rows [t, t + Rows), Parts registers of each product at a time; what lies
// beyond `end` repeats the last output.
template <class W, int Outputs, int Rows, int Parts>
HG_INLINE void dot_tile(const Linear &p, uint64_t n, uint64_t end, uint64_t t) {
  const uint8_t *w[Outputs];
  const float *x[Rows];
  F32x16 acc[Rows][Outputs];
#pragma GCC unroll 8
  for (int i = 0; i < Outputs; ++i) w[i] = p.weight + hg::min_of(n + i, end - 1) * p.weight_stride;
#pragma GCC unroll 8
  for (int j = 0; j < Rows; ++j) x[j] = p.x + (t + j) * p.x_stride;
  const uint64_t blocks = p.depth / 32;
  hg::Scales<W, Outputs> scales;
#pragma GCC unroll 1
  for (int at = 0; at < 16; at += Parts * kLanes) {
    // Several short rows are read at once, which the hardware's prefetchers follow badly: ask for the tile after this
    // one (seen 2026-11-30 on Zen 3: f32 from 8 to 16 GB/s). A prefetch never faults.
    const uint8_t *ahead = w[0] + Outputs * p.weight_stride;
    Lane sum[Rows][Outputs][Parts];
#pragma GCC unroll 8
    for (int j = 0; j < Rows; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < Outputs; ++i)
#pragma GCC unroll 4
        for (int part = 0; part < Parts; ++part) sum[j][i][part] = hg::splat<float, kLanes>(0.0f);
    for (uint64_t first = 0; first < blocks; first += hg::kScaledBlocks) {
      const uint64_t count = hg::min_of(hg::kScaledBlocks, blocks - first);
      if (at == 0 || blocks > hg::kScaledBlocks) scales.read(w, first, count);
      for (uint64_t b = 0, k = 32 * first; b < count; ++b, k += 32, ahead += Outputs * W::kBytes) {
        if (at == 0)
#pragma GCC unroll 16
          for (int to = 0; to < Outputs * W::kBytes; to += 64) __builtin_prefetch(ahead + to);
#pragma GCC unroll 8
        for (int i = 0; i < Outputs; ++i)
#pragma GCC unroll 4
          for (int part = 0; part < Parts; ++part) {
            const int lane = at + part * kLanes;
            const auto v = W::template block<kLanes>(w[i], first + b, scales.of[i] + W::kScales * b, lane);
#pragma GCC unroll 8
            for (int j = 0; j < Rows; ++j) {
              const float *xs = x[j] + k + lane;
              sum[j][i][part] = hg::fma(v.lo, hg::load<float, kLanes>(xs), sum[j][i][part]);
              sum[j][i][part] = hg::fma(v.hi, hg::load<float, kLanes>(xs + 16), sum[j][i][part]);
            }
          }
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < Rows; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < Outputs; ++i)
#pragma GCC unroll 4
        for (int part = 0; part < Parts; ++part) {
          if constexpr (kLanes == 16) acc[j][i] = sum[j][i][part];
          else hg::store<float, kLanes>(reinterpret_cast<float *>(&acc[j][i]) + at + part * kLanes, sum[j][i][part]);
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
  if constexpr (Outputs == 1) {
    write_column<Rows>(p, t, n, acc);
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < Rows; ++j) write_sums<Outputs>(p, t + j, n, end, acc[j]);
  }
}

template <class W, int Rows> void dot_tiles(const Linear &p, hg::Range n, uint64_t t) {
  // With 16 registers, as many accumulators as leave some for the weights, and more products than one wait for each.
  constexpr int kTile = Rows == 1 ? (kWide ? 8 : 4) : kWide ? 4 : kLanes == 8 && Rows > 2 ? 1 : 2;
  constexpr int kParts = kLanes == 8 && Rows > 6 ? 1 : 16 / kLanes;
  for (uint64_t at = n.begin; at < n.end; at += kTile) dot_tile<W, kTile, Rows, kParts>(p, at, n.end, t);
}
template <class W, int Rows = kFew> HG_INLINE void few(const Linear &p, hg::Range n, hg::Range t) {
  if (t.end - t.begin == Rows) return dot_tiles<W, Rows>(p, n, t.begin);
  if constexpr (Rows > 1) few<W, Rows - 1>(p, n, t);
}

// ---- weights decoded into a buffer -----------------------------------------------------------------------------
// One register of each accumulator at a time, in 16 / kLanes passes: 4 x 3 accumulators, 3 rows and 1 weight fill 16
// registers, 4 x 6 most of 32.
constexpr int kTile = 4;
constexpr bool kAhead = kLanes == 8;  // asks for the rows of the next group

struct Tile {
  alignas(64) float weights[kOutputs][kDepth];
  alignas(64) float sums[kRows][kOutputs][16];
};
struct Part { hg::Range outputs, rows, depth; };

// sum[j][i] += x[j] . w[i], `depth` elements, of which what is no multiple of 16 is left. Ahead: asks for `next` rows.
template <int Count, bool Ahead>
HG_INLINE void multiply(const float *w, const float *x, uint64_t x_stride, const float *next, uint64_t depth,
                        Lane (&sum)[Count][kTile]) {
  constexpr int kAsked = Ahead ? (Count < 3 ? Count : Count - 1) : 0;
  for (uint64_t k = 0; k + 16 <= depth; k += 16) {
    Lane xs[Count];
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j) xs[j] = hg::load<float, kLanes>(x + j * x_stride + k);
#pragma GCC unroll 8
    for (int j = 0; j < kAsked; ++j) __builtin_prefetch(next + j * x_stride + k);
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      const Lane ws = hg::load<float, kLanes>(w + i * kDepth + k);
#pragma GCC unroll 8
      for (int j = 0; j < Count; ++j) sum[j][i] = hg::fma(ws, xs[j], sum[j][i]);
    }
  }
}

// Lanes [at, at + kLanes) of Count x kTile products over the tile's depth.
template <int Count>
HG_INLINE void accumulate_lanes(const Linear &p, Tile &tile, const Part &part, uint64_t row, uint64_t n, int at,
                                F32x16 (&acc)[Count][kTile]) {
  Lane sum[Count][kTile];
  const float *rows = p.x + part.depth.begin, *w = tile.weights[n] + at;
  const float *x = rows + (part.rows.begin + row) * p.x_stride + at;
#pragma GCC unroll 8
  for (int j = 0; j < Count; ++j)
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i)
      sum[j][i] = part.depth.begin ? hg::load<float, kLanes>(tile.sums[row + j][n + i] + at)
                                   : hg::splat<float, kLanes>(0.0f);
  const uint64_t depth = part.depth.end - part.depth.begin, whole = depth / 16 * 16;
  const bool last = at + kLanes == 16 && n + kTile >= part.outputs.end - part.outputs.begin;
  if (kAhead && last) {
    // In the last pass over these rows the next come from the second cache. Asked for earlier, they push weights out
    // of the first; two of three leave its port enough for the products (seen 2026-11-30 on Zen 3: 4 % at 39 rows).
    const uint64_t after = part.rows.begin + row + Count;
    multiply<Count, true>(w, x, p.x_stride, rows + (after < p.rows ? after : 0) * p.x_stride, depth, sum);
  } else {
    multiply<Count, false>(w, x, p.x_stride, nullptr, depth, sum);
  }
  if (whole < depth) {  // missing lanes add 0 * 0, as in `few`
    float xs[32];
#pragma GCC unroll 8
    for (int j = 0; j < Count; ++j) {
      padded(x - at + j * p.x_stride + whole, int(depth - whole), xs);
      const Lane end = hg::load<float, kLanes>(xs + at);
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i)
        sum[j][i] = hg::fma(hg::load<float, kLanes>(w + i * kDepth + whole), end, sum[j][i]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < Count; ++j)
#pragma GCC unroll 8
    for (int i = 0; i < kTile; ++i) {
      if constexpr (kLanes == 16) acc[j][i] = sum[j][i];
      else hg::store<float, kLanes>(reinterpret_cast<float *>(&acc[j][i]) + at, sum[j][i]);
    }
}

// All lanes. Between the tiles of a deep row they wait in `sums`.
template <int Count>
HG_INLINE void accumulate(const Linear &p, Tile &tile, const Part &part, uint64_t row, uint64_t n) {
  F32x16 acc[Count][kTile];
  if constexpr (kLanes == 8) {  // written out, the second pass leaves its half in registers
    accumulate_lanes(p, tile, part, row, n, 0, acc);
    accumulate_lanes(p, tile, part, row, n, 8, acc);
  } else {
    for (int at = 0; at < 16; at += kLanes) accumulate_lanes(p, tile, part, row, n, at, acc);
  }
  const bool ends = part.depth.end == p.depth;
#pragma GCC unroll 8
  for (int j = 0; j < Count; ++j) {
    if (ends) write_sums<kTile>(p, part.rows.begin + row + j, part.outputs.begin + n, part.outputs.end, acc[j]);
    else
#pragma GCC unroll 8
      for (int i = 0; i < kTile; ++i) hg::store<float, 16>(tile.sums[row + j][n + i], acc[j][i]);
  }
}

template <int Count = kGroup>
void accumulate_group(const Linear &p, Tile &tile, const Part &part, uint64_t row, uint64_t count) {
  if constexpr (Count > 1)
    if (count < Count) return accumulate_group<Count - 1>(p, tile, part, row, count);
  for (uint64_t n = 0; n < part.outputs.end - part.outputs.begin; n += kTile) accumulate<Count>(p, tile, part, row, n);
}

template <class W> void many(const Linear &p, Tile &tile, hg::Range n, hg::Range t) {
  const uint64_t rows = t.end - t.begin, outputs = (n.end - n.begin + kTile - 1) / kTile * kTile;
  uint64_t k = 0;
  do {
    const uint64_t rest = p.depth - k, tiles = hg::blocks_of(rest, kDepth);  // of about equal depth
    const Part part = {n, t, {k, tiles > 1 ? k + hg::blocks_of(rest, 32 * tiles) * 32 : p.depth}};
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
    k = part.depth.end;
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
    if (t.end - t.begin <= kFew) few<W>(p, n, t);
    else many<W>(p, tile, n, t);
  }
}
}  // namespace

HG_POINTERS(Linear, x, weight, bias, real, out)
HG_MODULE("linear", hg::function<linear<hg::Plain<float>>>("linear_f32"),
          hg::function<linear<hg::Plain<hg::bf16>>>("linear_bf16"),
          hg::function<linear<hg::Plain<hg::f16>>>("linear_f16"), hg::function<linear<hg::Q8_0>>("linear_q8_0"),
          hg::function<linear<hg::Q4_1>>("linear_q4_1"))
