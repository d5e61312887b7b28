// Where a token's keys and values lie: the cache is f16 [block][layer][k or v][kv head][token][dim], and a sequence's
// row of the table names its blocks.
//
// Every offset that contains a block index is computed in 64 bits, here and nowhere else: in 32 it would wrap at
// 32,768 tokens of an 8 B model. The number of blocks is no parameter: a cache may grow without a kernel knowing.
#pragma once
#include "kernel.h"

namespace hg {

struct Paging {
  uint64_t block_stride;  // elements from a block to the next
  uint64_t layer_offset;  // elements from a block's start to the layer's keys
  uint32_t block_tokens, kv_heads, dim;
  uint32_t table_rows, table_width, unused;
};

// A token's place, or none: a position of -1 is padding, and so is whatever the table cannot hold.
HG_INLINE bool in_table(const Paging &paging, int32_t row, int32_t position) {
  return uint32_t(row) < paging.table_rows && position >= 0 &&
         uint32_t(position) / paging.block_tokens < paging.table_width;
}
// Elements from the cache's start to the token's first key of `head`. The block index must not be negative.
HG_INLINE uint64_t key_offset(const Paging &paging, int32_t block_index, uint32_t slot, uint32_t head) {
  const uint64_t block_start = uint64_t(uint32_t(block_index)) * paging.block_stride;
  return block_start + paging.layer_offset + (uint64_t(head) * paging.block_tokens + slot) * paging.dim;
}
// Elements from a key to the value of the same token and head.
HG_INLINE uint64_t value_distance(const Paging &paging) {
  return uint64_t(paging.kv_heads) * paging.block_tokens * paging.dim;
}

}  // namespace hg
