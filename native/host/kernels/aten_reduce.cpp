// Reductions over any dimensions. In f32 a result is folded from 16 lanes, element i of the reduced space in lane
// i mod 16, 512 elements at a time; f64 and integers go one by one. Whatever the strides, it depends on the elements and their order alone.
#include "strided.h"

namespace hg::aten {

struct Reduce {
  void *out;          // contiguous, one element a kept index
  void *second;       // the mean beside a variance; null: not wanted
  const void *in;
  int64_t kept_shape[kMaxRank], kept_strides[kMaxRank];
  int64_t reduced_shape[kMaxRank], reduced_strides[kMaxRank];
  uint64_t kept, reduced;
  double divisor;     // of a mean or a variance
  uint32_t kept_rank, reduced_rank, out_type, second_type, in_type, rows_per_block;
};

// An op is written once for lanes of f32 and for single elements.
template <class C> HG_INLINE C choose(bool mask, C yes, C no) { return mask ? yes : no; }
template <int N> HG_INLINE Lanes<float, N> choose(Lanes<int32_t, N> mask, Lanes<float, N> yes, Lanes<float, N> no) {
  return select<float, N>(mask, yes, no);
}
template <class C, class X> HG_INLINE C value(C, X x) { return C(x); }
template <int N> HG_INLINE Lanes<float, N> value(Lanes<float, N>, float x) { return splat<float, N>(x); }

struct Plain { template <class V> HG_INLINE V operator()(V x) const { return x; } };
struct Truth {
  template <class V> HG_INLINE V operator()(V x) const { return choose(x != value(x, 0.0f), value(x, 1.0f), value(x, 0.0f)); }
};
// How elements are combined, what they become first, and what stands for no element.
struct Sum {
  template <class C> static constexpr C none = C(0);
  using Prepare = Plain;
  template <class V> static HG_INLINE V of(V acc, V x) { return acc + x; }
};
struct Product {
  template <class C> static constexpr C none = C(1);
  using Prepare = Plain;
  template <class V> static HG_INLINE V of(V acc, V x) { return acc * x; }
};
struct Largest {  // a NaN stays
  template <class C> static constexpr C none = kSame<C, int64_t> ? C(INT64_MIN) : C(-__builtin_inf());
  using Prepare = Plain;
  template <class V> static HG_INLINE V of(V acc, V x) { return choose((x > acc) | (x != x), x, acc); }
};
struct Smallest {
  template <class C> static constexpr C none = kSame<C, int64_t> ? C(INT64_MAX) : C(__builtin_inf());
  using Prepare = Plain;
  template <class V> static HG_INLINE V of(V acc, V x) { return choose((x < acc) | (x != x), x, acc); }
};
struct Any : Largest {
  template <class C> static constexpr C none = C(0);
  using Prepare = Truth;
};
struct All : Smallest {
  template <class C> static constexpr C none = C(1);
  using Prepare = Truth;
};

template <class F, int N> HG_INLINE float fold(Lanes<float, N> x) {
  if constexpr (N > 2) return fold<F>(F::of(halve_lo(x), halve_hi(x)));
  else return F::of(x.v[0], x.v[1]);
}
HG_INLINE F32x16 load_or(const float *p, uint64_t count, float absent) {
  if (count >= 16) return load(p);
  float lanes[16];
  for (uint64_t i = 0; i < 16; ++i) lanes[i] = i < count ? p[i] : absent;
  return load(lanes);
}

// One row's elements, prepared and folded. The last lanes are filled with elements that count as `absent`.
template <class F, class C, class Prepare>
HG_INLINE C fold_row(const Source<C> &row, uint64_t count, C absent, Prepare prepare) {
  alignas(64) C buffer[kTile];
  C total = F::template none<C>;
  F32x16 lanes = splat(F::template none<float>);
  for (uint64_t at = 0; at < count; at += kTile) {
    const uint64_t n = min_of(kTile, count - at);
    const C *x = row.tile(at, n, buffer);
    if constexpr (kSame<C, float>) {
      F32x16 part = splat(F::template none<float>);  // a tile for itself: long sums round less
      for (uint64_t i = 0; i < n; i += 16) part = F::of(part, prepare(load_or(x + i, n - i, absent)));
      lanes = F::of(lanes, part);
    } else {
      for (uint64_t i = 0; i < n; ++i) {
        HG_PLAIN_LOOP;
        total = F::of(total, prepare(x[i]));
      }
    }
  }
  if constexpr (kSame<C, float>) return fold<F>(lanes);
  else return total;
}
template <class C> HG_INLINE Source<C> row_of(const Reduce &p, uint64_t index) {
  const int64_t offset = offset_of(p.kept_rank, p.kept_shape, p.kept_strides, index);
  return Source<C>({p.reduced_rank, p.reduced_shape}, at(p.in, offset, p.in_type), p.in_type, p.reduced_strides);
}
template <class C> HG_INLINE void put(void *out, uint32_t type, uint64_t index, C value) {
  write_one(value, at(out, int64_t(index), type), type);
}
template <class Row> HG_INLINE void for_rows(const Reduce &p, uint32_t first, uint32_t last, Row row) {
  const uint64_t end = min_of(uint64_t(last) * p.rows_per_block, p.kept);
  for (uint64_t r = uint64_t(first) * p.rows_per_block; r < end; ++r) row(r);
}

template <class F, class C> void reduce(const Reduce &p, uint32_t first, uint32_t last) {
  for_rows(p, first, last, [&](uint64_t r) {
    put(p.out, p.out_type, r, fold_row<F>(row_of<C>(p, r), p.reduced, F::template none<C>, typename F::Prepare{}));
  });
}
template <class C> void mean(const Reduce &p, uint32_t first, uint32_t last) {
  for_rows(p, first, last, [&](uint64_t r) {
    put(p.out, p.out_type, r, fold_row<Sum>(row_of<C>(p, r), p.reduced, C(0), Plain{}) / C(p.divisor));
  });
}
// Two passes: the mean, then the squared distances from it.
template <class C> void variance(const Reduce &p, uint32_t first, uint32_t last) {
  for_rows(p, first, last, [&](uint64_t r) {
    const Source<C> row = row_of<C>(p, r);
    const C mean = fold_row<Sum>(row, p.reduced, C(0), Plain{}) / C(p.reduced);
    const C squares = fold_row<Sum>(row, p.reduced, mean, [&](auto x) {
      const auto d = x - value(x, mean);
      return d * d;
    });
    put(p.out, p.out_type, r, squares / C(p.divisor));
    if (p.second) put(p.second, p.second_type, r, mean);
  });
}
// The index of the largest (or smallest) element; a NaN wins, the first among equals.
template <class C, bool kGreatest> void index_of(const Reduce &p, uint32_t first, uint32_t last) {
  for_rows(p, first, last, [&](uint64_t r) {
    const Source<C> row = row_of<C>(p, r);
    C buffer[kTile], best = C(0);
    uint64_t index = 0;
    for (uint64_t at = 0; at < p.reduced; at += kTile) {
      const uint64_t n = min_of(kTile, p.reduced - at);
      const C *x = row.tile(at, n, buffer);
      for (uint64_t i = 0; i < n; ++i) {
        const bool better = (kGreatest ? x[i] > best : x[i] < best) || (x[i] != x[i] && best == best);
        if (better || at + i == 0) best = x[i], index = at + i;
      }
    }
    put(p.out, p.out_type, r, int64_t(index));
  });
}

}  // namespace hg::aten

using namespace hg::aten;
HG_POINTERS(hg::aten::Reduce, out, second, in)
#define HG_REDUCE(F, name) hg::function<reduce<F, float>>(name "_f32"), hg::function<reduce<F, double>>(name "_f64"), \
                           hg::function<reduce<F, int64_t>>(name "_i64")
#define HG_INDEX(C, c) hg::function<index_of<C, true>>("argmax_" c), hg::function<index_of<C, false>>("argmin_" c)
HG_MODULE("aten_reduce", HG_REDUCE(Sum, "sum"), HG_REDUCE(Product, "prod"), HG_REDUCE(Largest, "amax"),
          HG_REDUCE(Smallest, "amin"), HG_REDUCE(Any, "any"), HG_REDUCE(All, "all"),
          hg::function<mean<float>>("mean_f32"), hg::function<mean<double>>("mean_f64"),
          hg::function<variance<float>>("var_f32"), hg::function<variance<double>>("var_f64"),
          HG_INDEX(float, "f32"), HG_INDEX(double, "f64"), HG_INDEX(int64_t, "i64"))
