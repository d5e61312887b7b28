// The small ops between the large ones: each element or row of a result depends on its own inputs alone.
#include "elementary.h"
#include "kernel.h"

namespace {
using hg::F32x16;

// ---- silu_mul and add: two matrices, rows a stride apart, a contiguous result ----------------------------------
struct Binary {
  const float *x, *y;
  const int32_t *real;  // [1] rows, or null
  float *out;           // [rows, columns]
  uint64_t x_stride, y_stride;
  uint32_t rows, columns, columns_per_block;
};

template <auto Op> void binary(const Binary &p, uint32_t first, uint32_t last) {
  const uint64_t blocks_a_row = hg::blocks_of(p.columns, p.columns_per_block);
  const uint64_t real = hg::real_rows(p.real, p.rows);
  const hg::Range blocks = hg::share(first, last, p.rows * blocks_a_row, real * blocks_a_row);
  for (uint64_t block = blocks.begin; block < blocks.end; ++block) {
    const uint64_t row = block / blocks_a_row;
    const hg::Range c = hg::items(block % blocks_a_row, p.columns_per_block, p.columns);
    const float *x = p.x + row * p.x_stride, *y = p.y + row * p.y_stride;
    float *out = p.out + row * p.columns;
    uint64_t i = c.begin;
    for (; i + 16 <= c.end; i += 16) hg::store<float, 16>(out + i, Op(hg::load(x + i), hg::load(y + i)));
    if (const int rest = int(c.end - i))
      hg::store_tail(out + i, Op(hg::load_tail(x + i, rest), hg::load_tail(y + i, rest)), rest);
  }
}
// gate / (1 + exp(-gate)) * up
F32x16 silu_mul(F32x16 gate, F32x16 up) { return gate / (hg::splat(1.0f) + hg::exp(-gate)) * up; }
F32x16 add(F32x16 x, F32x16 y) { return x + y; }

// ---- gather_rows: out[r] = x[index[r]]; an index outside gives zeros --------------------------------------------
struct Gather {
  const float *x;        // [rows, columns], x_stride apart
  const int32_t *index;  // [count]
  float *out;            // [count, columns]
  uint64_t x_stride;
  uint32_t rows, columns, count;
};
void gather_rows(const Gather &p, uint32_t first, uint32_t last) {
  for (uint64_t r = first; r < last; ++r) {
    float *out = p.out + r * p.columns;
    const uint32_t from = uint32_t(p.index[r]);
    if (from < p.rows) memcpy(out, p.x + from * p.x_stride, p.columns * sizeof(float));
    else memset(out, 0, p.columns * sizeof(float));
  }
}

// ---- clear_padding: zeros in the rows of x that are not real ----------------------------------------------------
struct Clear {
  float *x;             // [rows, columns]
  const int32_t *real;  // [1] rows
  uint32_t rows, columns;
};
void clear_padding(const Clear &p, uint32_t first, uint32_t last) {
  const uint64_t real = hg::real_rows(p.real, p.rows);
  const hg::Range padding = hg::share(first, last, p.rows, p.rows - real);
  memset(p.x + (real + padding.begin) * p.columns, 0, (padding.end - padding.begin) * p.columns * sizeof(float));
}

// ---- resolve_ids: id -1 stands for the slot's last sampled token ------------------------------------------------
struct Resolve {
  const int32_t *ids, *slots;   // [count]
  const int32_t *last_token;    // [slot_count]
  int32_t *out;                 // [count]
  uint32_t count, slot_count;
};
constexpr uint32_t kIdsPerBlock = 1024;
void resolve_ids(const Resolve &p, uint32_t first, uint32_t last) {
  for (uint32_t block = first; block < last; ++block) {
    const hg::Range t = hg::items(block, kIdsPerBlock, p.count);
    for (uint64_t i = t.begin; i < t.end; ++i)
      p.out[i] = p.ids[i] == -1 && uint32_t(p.slots[i]) < p.slot_count ? p.last_token[uint32_t(p.slots[i])] : p.ids[i];
  }
}

// ---- history_store: history[slot, position] = id; position -1 is padding ---------------------------------------
struct History {
  const int32_t *ids, *slots, *positions;  // [count]
  int32_t *history;                        // [slot_count, context]
  uint32_t count, slot_count, context;
};
void history_store(const History &p, uint32_t first, uint32_t last) {
  for (uint32_t block = first; block < last; ++block) {
    const hg::Range t = hg::items(block, kIdsPerBlock, p.count);
    for (uint64_t i = t.begin; i < t.end; ++i) {
      const uint32_t slot = uint32_t(p.slots[i]), position = uint32_t(p.positions[i]);
      if (slot < p.slot_count && position < p.context) p.history[uint64_t(slot) * p.context + position] = p.ids[i];
    }
  }
}
}  // namespace

HG_POINTERS(Binary, x, y, real, out)
HG_POINTERS(Clear, x, real)
HG_POINTERS(Gather, x, index, out)
HG_POINTERS(Resolve, ids, slots, last_token, out)
HG_POINTERS(History, ids, slots, positions, history)
HG_MODULE("glue", hg::function<binary<silu_mul>>("silu_mul_f32"), hg::function<binary<add>>("add_f32"),
          hg::function<gather_rows>("gather_rows_f32"), hg::function<clear_padding>("clear_padding_f32"), hg::function<resolve_ids>("resolve_ids"),
          hg::function<history_store>("history_store"))
