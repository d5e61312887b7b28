// Writes the keys and values of new tokens into the paged cache, rounded to f16.
#include "kernel.h"
#include "paged.h"

namespace {
struct KvStore {
  const float *k, *v;        // [tokens, kv_heads, dim]
  hg::f16 *cache;
  const int32_t *tables;     // [table_rows, table_width] block indices
  const int32_t *rows;       // [tokens] row of the table
  const int32_t *positions;  // [tokens], -1 is padding and writes nothing
  uint64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
  hg::Paging paging;
};

HG_INLINE void narrow(const float *from, hg::f16 *to, uint32_t count) {
  uint32_t i = 0;
  for (; i + 16 <= count; i += 16) hg::store_f32_as<16>(to + i, hg::load(from + i));
  if (i < count) hg::store_tail_f32_as(to + i, hg::load_tail(from + i, int(count - i)), int(count - i));
}

// A block of the grid is a token.
void kv_store(const KvStore &p, uint32_t first, uint32_t last) {
  const hg::Paging &paging = p.paging;
  for (uint64_t t = first; t < last; ++t) {
    const int32_t row = p.rows[t], position = p.positions[t];
    if (!hg::in_table(paging, row, position)) continue;
    const int32_t block_index = p.tables[uint64_t(row) * paging.table_width + uint32_t(position) / paging.block_tokens];
    if (block_index < 0) continue;
    for (uint32_t h = 0; h < paging.kv_heads; ++h) {
      hg::f16 *key = p.cache + hg::key_offset(paging, block_index, uint32_t(position) % paging.block_tokens, h);
      narrow(p.k + t * p.k_token_stride + h * p.k_head_stride, key, paging.dim);
      narrow(p.v + t * p.v_token_stride + h * p.v_head_stride, key + hg::value_distance(paging), paging.dim);
    }
  }
}
}  // namespace

HG_POINTERS(KvStore, k, v, cache, tables, rows, positions)
HG_MODULE("kv", hg::function<kv_store>("kv_store_f16"))
