// The driver of pointwise kernels: one parameter struct for each number of operands, one loop over tiles; an op is a
// functor on elements (`of`), or on 16 lanes of f32 (`lanes`).
#pragma once
#include "strided.h"

namespace hg {

template <int N> struct Elementwise {
  void *out;
  const void *in[N];              // null: constants[i]
  uint64_t constants[N];          // the bits of a double (float and double kernels) or of an int64_t
  int64_t shape[kMaxRank];
  int64_t strides[(N + 1) * kMaxRank];  // of out, then of each input; 0 broadcasts
  uint64_t count;
  uint32_t rank;
  uint32_t types[N + 1];          // of out, then of each input
};
constexpr uint64_t kElementsPerBlock = 4096;  // ops/aten/pointwise.py: ELEMENTS_PER_BLOCK

template <class C, int N> using Apply = void (*)(const C *const (&in)[N], C *out, uint64_t count);

template <class C, int N>
__attribute__((noinline)) void drive(const Elementwise<N> &p, uint32_t first, uint32_t last, Apply<C, N> apply) {
  alignas(64) C buffers[N + 1][kTile];
  const Shape shape = {p.rank, p.shape};
  const bool direct = p.types[0] == kStoredAs<C> && is_linear(shape, p.strides);
  const uint64_t end = min_of(uint64_t(last) * kElementsPerBlock, p.count);
  for (uint64_t start = uint64_t(first) * kElementsPerBlock; start < end; start += kTile) {
    const uint64_t count = min_of(kTile, end - start);
    const C *in[N];
    for (int i = 0; i < N; ++i) {
      const Source<C> source(shape, p.in[i], p.types[i + 1], p.strides + (i + 1) * kMaxRank, p.constants[i]);
      in[i] = source.tile(start, count, buffers[i]);
    }
    if (direct) {
      apply(in, static_cast<C *>(p.out) + start, count);
    } else {
      apply(in, buffers[N], count);
      scatter(shape, p.out, p.types[0], p.strides, start, count, buffers[N]);
    }
  }
}

template <class F> concept ByLanes = requires { F::lanes(F32x16{}); };

template <class F, class C, int N> HG_INLINE C element(const C *const (&in)[N], uint64_t i) {
  if constexpr (N == 1) return F::of(in[0][i]);
  else if constexpr (N == 2) return F::of(in[0][i], in[1][i]);
  else return F::of(in[0][i], in[1][i], in[2][i]);
}
template <class F, class C, int N> void apply(const C *const (&in)[N], C *out, uint64_t count) {
  uint64_t i = 0;
  if constexpr (ByLanes<F> && kSame<C, float>) {
    static_assert(N == 1);
    for (; i + 16 <= count; i += 16) store<float, 16>(out + i, F::lanes(load(in[0] + i)));
    if (i < count) store_tail<float, 16>(out + i, F::lanes(load_tail(in[0] + i, int(count - i))), int(count - i));
  } else if constexpr (kSame<C, float>) {
#pragma GCC ivdep
    for (; i < count; ++i) out[i] = element<F, C, N>(in, i);  // in place is the same index, never another
  } else {
    for (; i < count; ++i) {
      HG_PLAIN_LOOP;
      out[i] = element<F, C, N>(in, i);
    }
  }
}
template <class F, class C, int N> void pointwise(const Elementwise<N> &p, uint32_t first, uint32_t last) {
  drive<C, N>(p, first, last, apply<F, C, N>);
}

}  // namespace hg

HG_POINTERS(hg::Elementwise<1>, out, in[0])
HG_POINTERS(hg::Elementwise<2>, out, in[0], in[1])
HG_POINTERS(hg::Elementwise<3>, out, in[0], in[1], in[2])

#define HG_F32(N, op) hg::function<hg::pointwise<hg::aten::op, float, N>>(#op "_f32")
#define HG_F64(N, op) hg::function<hg::pointwise<hg::aten::op, double, N>>(#op "_f64")
#define HG_I64(N, op) hg::function<hg::pointwise<hg::aten::op, int64_t, N>>(#op "_i64")
#define HG_REAL(N, op) HG_F32(N, op), HG_F64(N, op)
#define HG_EVERY(N, op) HG_F32(N, op), HG_F64(N, op), HG_I64(N, op)
