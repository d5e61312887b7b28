// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. Lane i mod 16 sums the squares of elements i in order.
#include "kernel.h"

namespace {
struct RmsNorm {
  const float *x;       // [outer, inner, dim]
  const float *weight;  // [dim]
  const int32_t *real;  // [1] of the outer dimension, or null
  float *out;           // the same, contiguous
  uint64_t outer_stride, inner_stride;
  uint32_t inner, rows, dim, rows_per_block;
  float eps;
};

void rms_norm(const RmsNorm &p, uint32_t first, uint32_t last) {
  const uint64_t rows = uint64_t(hg::real_rows(p.real, p.rows / p.inner)) * p.inner;
  const hg::Range blocks =
      hg::share(first, last, hg::blocks_of(p.rows, p.rows_per_block), hg::blocks_of(rows, p.rows_per_block));
  const uint64_t begin = blocks.begin * p.rows_per_block, end = hg::min_of(blocks.end * p.rows_per_block, rows);
  const uint32_t whole = p.dim / 16 * 16;
  for (uint64_t row = begin; row < end; ++row) {
    const float *x = p.x + row / p.inner * p.outer_stride + row % p.inner * p.inner_stride;
    hg::F32x16 squares = hg::splat(0.0f);
    for (uint32_t i = 0; i < whole; i += 16) {
      const hg::F32x16 v = hg::load(x + i);
      squares = hg::fma(v, v, squares);
    }
    const hg::F32x16 rest = hg::load_tail(x + whole, int(p.dim - whole));
    const float mean = hg::sum(hg::fma(rest, rest, squares)) / float(p.dim);
    const float scale = hg::rsqrt(mean + p.eps);
    float *out = p.out + row * p.dim;
    for (uint32_t i = 0; i < p.dim; ++i) out[i] = x[i] * scale * p.weight[i];
  }
}
}  // namespace

HG_POINTERS(RmsNorm, x, weight, real, out)
HG_MODULE("norm", hg::function<rms_norm>("rms_norm_f32"))
