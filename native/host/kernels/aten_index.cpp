// Reading and writing at positions that other tensors give: embedding, indexing, gather, scatter.
//
// Up to kIndices tensors each index one dimension of the table; the table's other dimensions are walked as they are.
// A negative position counts from the end. One out of range cannot be reported from here, where PyTorch raises: a read
// gives all-ones bits (NaN in every floating type), a write is dropped, and no memory outside the table is touched.
#include "strided.h"

namespace hg::aten {

constexpr uint32_t kIndices = 4;  // ops/aten/index.py: MAX_INDICES

struct Indexed {
  void *table;          // read or written at the positions
  void *values;         // written or read in order
  const void *index[kIndices];
  int64_t shape[kMaxRank];                           // of the walk
  int64_t table_strides[kMaxRank], value_strides[kMaxRank];
  int64_t index_strides[kIndices * kMaxRank];
  int64_t extent[kIndices], stride[kIndices];        // of the indexed dimensions of the table
  uint64_t count;
  uint32_t rank, indices, index_types[kIndices], table_type, value_type;
};
constexpr uint64_t kPositionsPerBlock = 2048;  // ops/aten/index.py: POSITIONS_PER_BLOCK

// A run of positions along the last dimension; of length 1 where an index varies along it.
struct Run { int64_t table, value, table_step, value_step; uint64_t length; bool inside; };
using Body = void (*)(const Indexed &p, Run run);

__attribute__((noinline)) void for_positions(const Indexed &p, uint64_t start, uint64_t count, Body body) {
  const int64_t *const strides[] = {p.table_strides, p.value_strides, p.index_strides, p.index_strides + kMaxRank,
                                    p.index_strides + 2 * kMaxRank, p.index_strides + 3 * kMaxRank};
  const uint32_t last = p.rank - 1;
  bool varies = false;
  for (uint32_t j = 0; j < p.indices; ++j) varies |= strides[2 + j][last] != 0;
  for_runs<6>(p.rank, p.shape, strides, start, count, [&](const int64_t(&offset)[6], uint64_t run) {
    for (uint64_t i = 0; i < (varies ? run : 1); ++i) {
      Run out = {offset[0] + int64_t(i) * strides[0][last], offset[1] + int64_t(i) * strides[1][last],
                 strides[0][last], strides[1][last], varies ? 1 : run, true};
      for (uint32_t j = 0; j < p.indices; ++j) {
        const int64_t at = offset[2 + j] + int64_t(i) * strides[2 + j][last];
        int64_t position = p.index_types[j] == kI32 ? static_cast<const int32_t *>(p.index[j])[at] : static_cast<const int64_t *>(p.index[j])[at];
        if (position < 0) position += p.extent[j];
        out.inside &= position >= 0 && position < p.extent[j];
        out.table += out.inside ? position * p.stride[j] : 0;
      }
      body(p, out);
    }
  });
}

template <class T> void take_run(const Indexed &p, Run run) {
  const T *from = static_cast<const T *>(p.table) + run.table;
  T *to = static_cast<T *>(p.values) + run.value;
  if (run.inside && run.table_step == 1 && run.value_step == 1) {
    for (uint64_t i = 0; i < run.length; ++i) to[i] = from[i];
  } else {
    for (uint64_t i = 0; i < run.length; ++i, from += run.table_step, to += run.value_step) {
      HG_PLAIN_LOOP;
      *to = run.inside ? *from : T(~T(0));
    }
  }
}
template <class T> void take(const Indexed &p, uint32_t first, uint32_t last) {
  const uint64_t start = uint64_t(first) * kPositionsPerBlock, end = min_of(uint64_t(last) * kPositionsPerBlock, p.count);
  if (start < end) for_positions(p, start, end - start, take_run<T>);
}

// Writes are in order and all by the first block, so that the last of two equal positions wins in every split.
template <Body run> void put_all(const Indexed &p, uint32_t first, uint32_t last) {
  if (first == 0 && last > 0 && p.count > 0) for_positions(p, 0, p.count, run);
}
template <class T> void put_run(const Indexed &p, Run run) {
  if (!run.inside) return;
  T *to = static_cast<T *>(p.table) + run.table;
  const T *from = static_cast<const T *>(p.values) + run.value;
  for (uint64_t i = 0; i < run.length; ++i, to += run.table_step, from += run.value_step) {
    HG_PLAIN_LOOP;
    *to = *from;
  }
}

struct Add { template <class C> static HG_INLINE C of(C a, C b) { return a + b; } };
struct Multiply { template <class C> static HG_INLINE C of(C a, C b) { return a * b; } };
struct Larger { template <class C> static HG_INLINE C of(C a, C b) { return a != a || a > b ? a : b; } };
struct Smaller { template <class C> static HG_INLINE C of(C a, C b) { return a != a || a < b ? a : b; } };
template <class F, class C> void combine_run(const Indexed &p, Run run) {
  if (!run.inside) return;
  for (uint64_t i = 0; i < run.length; ++i, run.table += run.table_step, run.value += run.value_step) {
    void *to = at(p.table, run.table, p.table_type);
    const C x = read_one<C>(at(p.values, run.value, p.value_type), p.value_type);
    write_one(F::of(read_one<C>(to, p.table_type), x), to, p.table_type);
  }
}

}  // namespace hg::aten

using namespace hg::aten;
HG_POINTERS(hg::aten::Indexed, table, values, index[0], index[1], index[2], index[3])
#define HG_PUT(run, name) hg::function<put_all<run>>(name)
#define HG_COMBINE(F, name) hg::function<put_all<combine_run<F, float>>>(name "_f32"), \
                            hg::function<put_all<combine_run<F, double>>>(name "_f64"), \
                            hg::function<put_all<combine_run<F, int64_t>>>(name "_i64")
HG_MODULE("aten_index", hg::function<take<uint8_t>>("take_1"), hg::function<take<uint16_t>>("take_2"),
          hg::function<take<uint32_t>>("take_4"), hg::function<take<uint64_t>>("take_8"),
          HG_PUT(put_run<uint8_t>, "put_1"), HG_PUT(put_run<uint16_t>, "put_2"),
          HG_PUT(put_run<uint32_t>, "put_4"), HG_PUT(put_run<uint64_t>, "put_8"), HG_COMBINE(Add, "put_add"), HG_COMBINE(Multiply, "put_mul"),
          HG_COMBINE(Larger, "put_amax"), HG_COMBINE(Smaller, "put_amin"))
