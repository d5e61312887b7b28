// A tile of dot products in the fixed order: element k of every product goes to lane k mod 16 by one fused
// multiply-add, in ascending k; absent elements of the last lanes are zeros; the lanes are folded by `sum`. How many
// rows and columns are computed together changes no bit, so matrix-vector and matrix-matrix forms agree.
#pragma once
#include "strided.h"

namespace hg {

constexpr uint32_t kTileRows = 32, kTileColumns = 16;  // ops/aten/products.py: TILE_ROWS, TILE_COLUMNS
constexpr uint64_t kDepth = 256;  // elements at a time: 16 columns of them stay in the first cache; a multiple of 16

HG_INLINE uint64_t whole_lanes(uint64_t count) { return (count + 15) / 16 * 16; }

struct DotTile {
  F32x16 acc[kTileRows][kTileColumns];

  void clear(uint32_t rows, uint32_t columns) {
    for (uint32_t r = 0; r < rows; ++r) for (uint32_t c = 0; c < columns; ++c) acc[r][c] = splat(0.0f);
  }

  // acc[r][c] += a[r] . b[c] over `depth` elements; only a last call may have a depth that is no multiple of 16.
  void add(const float *const *a, uint32_t rows, const float *const *b, uint32_t columns, uint64_t depth) {
    uint32_t r = 0;
#if defined(__AVX512F__)
    for (; r + 4 <= rows; r += 4) add_rows<4, 4>(a, r, b, columns, depth);
#endif
    for (; r + 2 <= rows; r += 2) add_rows<2, 2>(a, r, b, columns, depth);
    for (; r < rows; ++r) add_rows<1, 4>(a, r, b, columns, depth);
  }

 private:
  template <int R, int C> HG_INLINE void add_rows(const float *const *a, uint32_t r, const float *const *b, uint32_t columns, uint64_t depth) {
    uint32_t c = 0;
    for (; c + C <= columns; c += C) add_block<R, C>(a, r, b, c, depth);
    for (; c < columns; ++c) add_block<R, 1>(a, r, b, c, depth);
  }
  template <int R, int C>
  __attribute__((noinline)) void add_block(const float *const *a, uint32_t r, const float *const *b, uint32_t c, uint64_t depth) {
    F32x16 t[R][C];
    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) t[i][j] = acc[r + i][c + j];
    const float *rows[R], *columns[C];
    for (int i = 0; i < R; ++i) rows[i] = a[r + i];
    for (int j = 0; j < C; ++j) columns[j] = b[c + j];
    uint64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
      F32x16 x[R];
      for (int i = 0; i < R; ++i) x[i] = load(rows[i] + k);
      for (int j = 0; j < C; ++j) {
        const F32x16 y = load(columns[j] + k);
        for (int i = 0; i < R; ++i) t[i][j] = fma(x[i], y, t[i][j]);
      }
    }
    if (k < depth) {
      const int rest = int(depth - k);
      F32x16 x[R];
      for (int i = 0; i < R; ++i) x[i] = load_tail(rows[i] + k, rest);
      for (int j = 0; j < C; ++j) {
        const F32x16 y = load_tail(columns[j] + k, rest);
        for (int i = 0; i < R; ++i) t[i][j] = fma(x[i], y, t[i][j]);
      }
    }
    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) acc[r + i][c + j] = t[i][j];
  }
};

// The same products, bit for bit, for few rows and columns that lie side by side: each lane is a vector of columns, so
// nothing is packed.
constexpr uint32_t kFewRows = 4;
struct ColumnTile {
  F32x16 acc[kFewRows][16];  // by row and lane

  void clear(uint32_t rows) {
    for (uint32_t r = 0; r < rows; ++r) for (F32x16 &lane : acc[r]) lane = splat(0.0f);
  }
  // Element k of the rows times element k of the columns; k counts from a multiple of 16.
  HG_INLINE void add(const float *const *a, uint32_t rows, uint64_t k, F32x16 b) {
    for (uint32_t r = 0; r < rows; ++r) acc[r][k % 16] = fma(splat(a[r][k]), b, acc[r][k % 16]);
  }
  // The tree of `sum`. Lanes that the last elements of `length` left out take the zero that the other form adds there.
  F32x16 sums(uint32_t r, uint64_t length) {
    for (uint64_t i = length % 16; i % 16 != 0; ++i) acc[r][i] = acc[r][i] + splat(0.0f);
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) acc[r][i] = acc[r][i] + acc[r][i + half];
    return acc[r][0];
  }
};

}  // namespace hg
