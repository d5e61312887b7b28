// out = alpha a b + beta bias, for any strides, f32, f16 and bf16 computed in f32 (dots.h has the order).
#include "dots.h"

namespace hg::aten {

struct MatMul {
  void *out;
  const void *a, *b, *bias;  // a [batch, m, k], b [batch, k, n], bias [batch, m, n] or null
  uint64_t batch, m, n, k;
  int64_t out_strides[3], a_strides[3], b_strides[3], bias_strides[3];
  double alpha, beta;
  uint32_t out_type, a_type, b_type, bias_type;
};

// Lines of a row-major operand lie too far apart for the hardware to fetch ahead (measured: 14 times faster with it).
constexpr uint64_t kLinesAhead = 32;

// Vectors along k: in place, or packed kDepth elements at a time with zeros up to whole lanes.
struct Panel {
  const void *base;
  uint32_t type;
  int64_t step, k_step;  // between vectors, along k

  bool direct() const { return type == kF32 && k_step == 1; }
  bool lines() const { return step == 1 && k_step != 1; }  // neighbours in memory are in different vectors
  const void *element(uint64_t vector, uint64_t k) const { return at(base, int64_t(vector) * step + int64_t(k) * k_step, type); }

  void fill(const float **vectors, uint32_t count, uint64_t k, uint64_t depth, float (*packed)[kDepth]) const {
    for (uint32_t i = 0; i < count; ++i) vectors[i] = direct() ? static_cast<const float *>(element(i, k)) : packed[i];
    if (direct()) return;
    for (uint64_t j = 0; lines() && j < depth; ++j) {
      float line[kTileRows];
      __builtin_prefetch(element(0, k + j + kLinesAhead));
      read(element(0, k + j), type, 1, count, line);
      for (uint32_t i = 0; i < count; ++i) packed[i][j] = line[i];
    }
    for (uint32_t i = 0; !lines() && i < count; ++i) read(element(i, k), type, k_step, depth, packed[i]);
    for (uint32_t i = 0; i < count; ++i)
      for (uint64_t j = depth; j < whole_lanes(depth); ++j) packed[i][j] = 0.0f;
  }
};

HG_INLINE const void *element(const void *data, const int64_t (&strides)[3], uint32_t type, uint64_t i, uint64_t j, uint64_t l) {
  return at(data, int64_t(i) * strides[0] + int64_t(j) * strides[1] + int64_t(l) * strides[2], type);
}

// A tile of the result: where it lies, and its products before alpha and bias.
struct Tile {
  const MatMul &p;
  uint64_t batch, m, n;
  uint32_t rows, columns;
  Panel a, b;
  float products[kTileRows][kTileColumns];

  Tile(const MatMul &params, uint64_t batch_index, uint64_t row, uint64_t column)
      : p(params), batch(batch_index), m(row), n(column),
        rows(uint32_t(min_of(kTileRows, p.m - row))), columns(uint32_t(min_of(kTileColumns, p.n - column))),
        a{element(p.a, p.a_strides, p.a_type, batch, m, 0), p.a_type, p.a_strides[1], p.a_strides[2]},
        b{element(p.b, p.b_strides, p.b_type, batch, 0, n), p.b_type, p.b_strides[2], p.b_strides[1]} {}

  __attribute__((noinline)) void by_vectors() {
    alignas(64) float packed_a[kTileRows][kDepth], packed_b[kTileColumns][kDepth];
    const float *as[kTileRows], *bs[kTileColumns];
    DotTile tile;
    tile.clear(rows, columns);
    const bool packed = !a.direct() && !b.direct();
    for (uint64_t k = 0; k < p.k; k += kDepth) {
      const uint64_t depth = min_of(kDepth, p.k - k);
      a.fill(as, rows, k, depth, packed_a);
      b.fill(bs, columns, k, depth, packed_b);
      tile.add(as, rows, bs, columns, packed ? whole_lanes(depth) : depth);
    }
    for (uint32_t r = 0; r < rows; ++r) for (uint32_t c = 0; c < columns; ++c) products[r][c] = sum(tile.acc[r][c]);
  }
  __attribute__((noinline)) void by_lines() {  // few rows: each line of b is used once, as it lies
    alignas(64) float packed_a[kFewRows][kDepth], line[16] = {};
    const float *as[kFewRows];
    const bool whole = b.type == kF32 && columns == 16;
    ColumnTile tile;
    tile.clear(rows);
    for (uint64_t k = 0; k < p.k; k += kDepth) {
      const uint64_t depth = min_of(kDepth, p.k - k);
      a.fill(as, rows, k, depth, packed_a);
      for (uint64_t j = 0; j < depth; ++j) {
        const void *from = b.element(0, k + j);
        __builtin_prefetch(b.element(0, k + j + kLinesAhead));
        if (!whole) read(from, b.type, 1, columns, line);
        tile.add(as, rows, j, load(whole ? static_cast<const float *>(from) : line));
      }
    }
    for (uint32_t r = 0; r < rows; ++r) store<float, 16>(products[r], tile.sums(r, p.k));
  }
  void write_out() {
    for (uint32_t r = 0; r < rows; ++r) {
      float bias[kTileColumns] = {};
      if (p.bias) read(element(p.bias, p.bias_strides, p.bias_type, batch, m + r, n), p.bias_type, p.bias_strides[2], columns, bias);
      for (uint32_t c = 0; c < columns; ++c) {
        products[r][c] = float(p.alpha) * products[r][c];
        if (p.bias) products[r][c] = products[r][c] + float(p.beta) * bias[c];
      }
      void *to = const_cast<void *>(element(p.out, p.out_strides, p.out_type, batch, m + r, n));
      write(products[r], columns, to, p.out_type, p.out_strides[2]);
    }
  }
};

void matmul(const MatMul &p, uint32_t first, uint32_t last) {
  const uint64_t row_tiles = (p.m + kTileRows - 1) / kTileRows, column_tiles = (p.n + kTileColumns - 1) / kTileColumns;
  for (uint32_t block = first; block < last; ++block) {
    Tile tile(p, block / row_tiles / column_tiles, block % row_tiles * kTileRows, block / row_tiles % column_tiles * kTileColumns);
    if (tile.rows <= kFewRows && tile.b.lines()) tile.by_lines();
    else tile.by_vectors();
    tile.write_out();
  }
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::MatMul, out, a, b, bias)
HG_MODULE("aten_matmul", hg::function<hg::aten::matmul>("matmul"))
