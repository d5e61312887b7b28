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

// Vectors along k: in place, or packed kDepth elements at a time.
struct Panel {
  const void *base;
  uint32_t type;
  int64_t step, k_step;  // between vectors, along k
  bool direct() const { return type == kF32 && k_step == 1; }
  void fill(const float **vectors, uint32_t count, uint64_t k, uint64_t depth, float (*packed)[kDepth]) const {
    for (uint32_t i = 0; i < count; ++i) {
      const void *from = at(base, int64_t(i) * step + int64_t(k) * k_step, type);
      vectors[i] = direct() ? static_cast<const float *>(from) : packed[i];
      if (!direct()) read(from, type, k_step, depth, packed[i]);
    }
  }
};

void matmul(const MatMul &p, uint32_t first, uint32_t last) {
  const uint64_t row_tiles = (p.m + kTileRows - 1) / kTileRows, column_tiles = (p.n + kTileColumns - 1) / kTileColumns;
  for (uint32_t block = first; block < last; ++block) {
    const uint64_t m0 = block % row_tiles * kTileRows, n0 = block / row_tiles % column_tiles * kTileColumns;
    const int64_t batch = int64_t(block / row_tiles / column_tiles);
    const uint32_t rows = uint32_t(min_of(kTileRows, p.m - m0)), columns = uint32_t(min_of(kTileColumns, p.n - n0));
    const auto base = [](const void *data, const int64_t *strides, uint32_t type, int64_t i, int64_t j, int64_t l) {
      return at(data, i * strides[0] + j * strides[1] + l * strides[2], type);
    };
    const Panel a = {base(p.a, p.a_strides, p.a_type, batch, int64_t(m0), 0), p.a_type, p.a_strides[1], p.a_strides[2]};
    const Panel b = {base(p.b, p.b_strides, p.b_type, batch, 0, int64_t(n0)), p.b_type, p.b_strides[2], p.b_strides[1]};
    alignas(64) float packed_a[kTileRows][kDepth], packed_b[kTileColumns][kDepth];
    const float *as[kTileRows], *bs[kTileColumns];
    DotTile tile;
    for (uint32_t r = 0; r < rows; ++r) for (uint32_t c = 0; c < columns; ++c) tile.acc[r][c] = splat(0.0f);
    const uint64_t step = a.direct() && b.direct() ? p.k : kDepth;
    for (uint64_t k = 0; k < p.k; k += step) {
      const uint64_t depth = min_of(step, p.k - k);
      a.fill(as, rows, k, depth, packed_a);
      b.fill(bs, columns, k, depth, packed_b);
      tile.add(as, rows, bs, columns, depth);
    }
    for (uint32_t r = 0; r < rows; ++r) {
      float line[kTileColumns], bias[kTileColumns];
      for (uint32_t c = 0; c < columns; ++c) line[c] = float(p.alpha) * sum(tile.acc[r][c]);
      if (p.bias) {
        read(base(p.bias, p.bias_strides, p.bias_type, batch, int64_t(m0 + r), int64_t(n0)), p.bias_type, p.bias_strides[2], columns, bias);
        for (uint32_t c = 0; c < columns; ++c) line[c] = line[c] + float(p.beta) * bias[c];
      }
      void *to = const_cast<void *>(base(p.out, p.out_strides, p.out_type, batch, int64_t(m0 + r), int64_t(n0)));
      write(line, columns, to, p.out_type, p.out_strides[2]);
    }
  }
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::MatMul, out, a, b, bias)
HG_MODULE("aten_matmul", hg::function<hg::aten::matmul>("matmul"))
