// Kernels of the runtime's tests: a small model, and one function for each fault that a test plants.
#include "kernels/kernel.h"

namespace {
using hg::min_of;

struct Scale { const float *x, *w; float *out; uint32_t cols, depth; };  // out[r, c] = x[r, c] * sum of w[:, c]
void scale(const Scale &p, uint32_t first, uint32_t last) {
  for (uint32_t r = first; r < last; ++r)
    for (uint32_t c = 0; c < p.cols; ++c) p.out[r * p.cols + c] = 0;
  for (uint32_t d = 0; d < p.depth; ++d)
    for (uint32_t r = first; r < last; ++r)
      for (uint32_t c = 0; c < p.cols; ++c) p.out[r * p.cols + c] += p.x[r * p.cols + c] * p.w[d * p.cols + c];
}

struct Shift { const float *x, *table; float *out; uint32_t cols; };  // out[r, c] = x[r, c] + table[c]
void shift(const Shift &p, uint32_t first, uint32_t last) {
  for (uint32_t r = first; r < last; ++r)
    for (uint32_t c = 0; c < p.cols; ++c) p.out[r * p.cols + c] = p.x[r * p.cols + c] + p.table[c];
}

struct Fetch { const float *x, *cache; const int32_t *ids; float *out; uint32_t cols; };  // + the unit named by ids[r]
void fetch(const Fetch &p, uint32_t first, uint32_t last) {
  for (uint32_t r = first; r < last; ++r)
    for (uint32_t c = 0; c < p.cols; ++c) {
      float old = p.ids[r] < 0 ? 0 : p.cache[uint64_t(p.ids[r]) * p.cols + c];
      p.out[r * p.cols + c] = p.x[r * p.cols + c] + old;
    }
}

struct Store { const float *x; const int32_t *ids; float *cache; uint32_t cols; };  // padding rows (-1) write unit 0
void store(const Store &p, uint32_t first, uint32_t last) {
  for (uint32_t r = first; r < last; ++r)
    for (uint32_t c = 0; c < p.cols; ++c)
      p.cache[uint64_t(p.ids[r] < 0 ? 0 : p.ids[r]) * p.cols + c] = 0.5f * p.x[r * p.cols + c];
}

struct Total { const float *x; float *total; uint32_t cols; };  // total += x[0]
void total(const Total &p, uint32_t, uint32_t) {
  for (uint32_t c = 0; c < p.cols; ++c) p.total[c] += p.x[c];
}

// ---- planted faults ----------------------------------------------------------------------------------------------
struct Peek { const uint32_t *from; float *out; };  // reads a word that nobody wrote
void peek(const Peek &p, uint32_t, uint32_t) { p.out[0] += float(p.from[0] % 1024); }

struct Bump { uint32_t *counter; float *out; };  // a counter that must start at zero and survives
void bump(const Bump &p, uint32_t, uint32_t) { p.out[0] += float(p.counter[0]++ % 1024); }

struct Poke { uint32_t *to; };
void poke(const Poke &p, uint32_t, uint32_t) { p.to[0] += 1; }

struct Trap { const uint32_t *flag; };  // faults if the flag is not zero
void trap(const Trap &p, uint32_t, uint32_t) {
  if (p.flag[0]) *reinterpret_cast<volatile uint32_t *>(uintptr_t(p.flag[0] & 8)) = 1;
}

struct Hang { const volatile uint32_t *flag; };
void hang(const Hang &p, uint32_t, uint32_t) {
  while (p.flag[0]) {}
}

struct Leak { const float *x; float *out; uint32_t last; };  // a real row depends on the last row
void leak(const Leak &p, uint32_t, uint32_t) { p.out[0] += p.x[p.last]; }

struct Spoil { float *out; };  // writes a NaN
void spoil(const Spoil &p, uint32_t, uint32_t) { p.out[1] = __builtin_nanf(""); }
}  // namespace

HG_POINTERS(Scale, x, w, out)
HG_POINTERS(Shift, x, table, out)
HG_POINTERS(Fetch, x, cache, ids, out)
HG_POINTERS(Store, x, ids, cache)
HG_POINTERS(Total, x, total)
HG_POINTERS(Peek, from, out)
HG_POINTERS(Bump, counter, out)
HG_POINTERS(Poke, to)
HG_POINTERS(Trap, flag)
HG_POINTERS(Hang, flag)
HG_POINTERS(Leak, x, out)
HG_POINTERS(Spoil, out)
HG_MODULE("study", hg::function<scale>("scale"), hg::function<shift>("shift"), hg::function<fetch>("fetch"),
          hg::function<store>("store"), hg::function<total>("total"), hg::function<peek>("peek"),
          hg::function<bump>("bump"), hg::function<poke>("poke"), hg::function<trap>("trap"),
          hg::function<hang>("hang"), hg::function<leak>("leak"), hg::function<spoil>("spoil"))
