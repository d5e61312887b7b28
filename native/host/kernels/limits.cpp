// The machine's limits, measured by the tests of speed: how fast memory can be read, how fast a core multiplies and
// adds. No model uses this family.
#include "kernel.h"

namespace {
struct Limit {
  const float *x;  // [count], a multiple of 128
  float *out;      // [blocks]
  uint64_t count, count_per_block;
};

void read(const Limit &p, uint32_t first, uint32_t last) {
  for (uint32_t block = first; block < last; ++block) {
    const hg::Range r = hg::items(block, p.count_per_block, p.count);
    hg::F32x16 sums[4] = {hg::splat(0.0f), hg::splat(0.0f), hg::splat(0.0f), hg::splat(0.0f)};
    for (uint64_t i = r.begin; i + 64 <= r.end; i += 64) {
      __builtin_prefetch(p.x + i + 512);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sums[j] = sums[j] + hg::load(p.x + i + 16 * j);
    }
    p.out[block] = hg::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// count_per_block chains of multiply-adds on registers: 12 independent ones hide the latency.
void fma(const Limit &p, uint32_t first, uint32_t last) {
  using Part = hg::Lanes<float, hg::kRegisterBytes / 4>;
  for (uint32_t block = first; block < last; ++block) {
    Part sums[12];
    const Part factor = hg::load<float, hg::kRegisterBytes / 4>(p.x);
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sums[j] = factor * hg::splat<float, hg::kRegisterBytes / 4>(float(j));  // or they are one
    for (uint64_t i = 0; i < p.count_per_block; i += 12 * hg::kRegisterBytes / 4)
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sums[j] = hg::fma(sums[j], factor, factor);
    Part all = sums[0];
#pragma GCC unroll 12
    for (int j = 1; j < 12; ++j) all = all + sums[j];
    p.out[block] = hg::sum(all);
  }
}
}  // namespace

HG_POINTERS(Limit, x, out)
HG_MODULE("limits", hg::function<read>("read_f32"), hg::function<fma>("fma_f32"))
