// A tile of dot products in the fixed order: element k of every product goes to lane k mod 16 by one fused
// multiply-add, in ascending k; absent elements of the last lanes are zeros; the lanes are folded by `sum`. How many
// rows and columns are computed together changes no bit, so matrix-vector and matrix-matrix forms agree.
#pragma once
#include "strided.h"

namespace hg {

constexpr uint32_t kTileRows = 32, kTileColumns = 16;
constexpr uint64_t kDepth = 256;  // elements packed at a time; a multiple of 16

struct DotTile {
  F32x16 acc[kTileRows][kTileColumns];

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
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < C; ++j) t[i][j] = fma(load_tail(rows[i] + k, rest), load_tail(columns[j] + k, rest), t[i][j]);
    }
    for (int i = 0; i < R; ++i) for (int j = 0; j < C; ++j) acc[r + i][c + j] = t[i][j];
  }
};

}  // namespace hg
