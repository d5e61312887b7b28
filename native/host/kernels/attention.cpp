// Causal attention over the paged f16 cache, decode and prefill alike: each row runs over its positions 0..p in tiles
// of 16 absolute positions, in order, with a running maximum. What a row does depends on its own position and on
// nothing else, so a chunk of a prompt and a single decode step give the same bits.
//
// A tile: 16 scores (dot products in 16 lanes over the head's dim), p = exp(score - max), sum and output scaled by
// exp(old max - new max), then the values added token by token. Query heads that share a key head are computed
// together in groups, which saves conversions and changes no bit.
#include "elementary.h"
#include "kernel.h"
#include "paged.h"

namespace {
using hg::F32x16;

constexpr uint32_t kTile = 16;
constexpr uint32_t kMaxDim = 512;  // the op's folder refuses more

struct Attention {
  const float *q;            // [tokens, heads, dim]
  const hg::f16 *cache;
  const int32_t *tables;     // [table_rows, table_width]
  const int32_t *rows;       // [tokens]
  const int32_t *positions;  // [tokens], -1 is padding and gives zeros
  const int32_t *real;       // [1] tokens, or null
  float *out;                // [tokens, heads, dim], contiguous
  uint64_t q_token_stride, q_head_stride;
  hg::Paging paging;
  uint32_t tokens, heads;
  float scale;
};

template <int Group> struct State {
  alignas(64) float q[Group][kMaxDim];
  alignas(64) float out[Group][kMaxDim];
  alignas(64) float p[Group][kTile];
  float max[Group], sum[Group];
};

// f(i, sixteen elements of p from i on), over all of a head.
template <class F> HG_INLINE void for_sixteens(const hg::f16 *p, uint32_t dim, F &&f) {
  uint32_t i = 0;
  for (; i + 16 <= dim; i += 16) f(i, hg::load_as_f32(p + i));
  if (i < dim) f(i, hg::load_tail_as_f32(p + i, int(dim - i)));
}

// Scores of `count` tokens whose keys are given; lanes beyond are minus infinity.
template <int Group>
HG_INLINE void score(const Attention &a, State<Group> &s, const hg::f16 *const *keys, uint32_t count) {
  constexpr uint32_t kKeys = 4;  // folded together
  for (uint32_t j = 0; j < count; j += kKeys) {
    F32x16 acc[Group][kKeys];
#pragma GCC unroll 4
    for (uint32_t n = 0; n < kKeys; ++n) {
#pragma GCC unroll 4
      for (int g = 0; g < Group; ++g) acc[g][n] = hg::splat(0.0f);
      for_sixteens(keys[hg::min_of(j + n, count - 1)], a.paging.dim, [&](uint32_t i, F32x16 key) HG_INLINE_LAMBDA {
#pragma GCC unroll 4
        for (int g = 0; g < Group; ++g) acc[g][n] = hg::fma(hg::load(s.q[g] + i), key, acc[g][n]);
      });
    }
#pragma GCC unroll 4
    for (int g = 0; g < Group; ++g) {
      const hg::Lanes<float, 4> sums = hg::sum4(acc[g][0], acc[g][1], acc[g][2], acc[g][3]);
      hg::store<float, 4>(s.p[g] + j, sums * hg::splat<float, 4>(a.scale));
    }
  }
  for (int g = 0; g < Group; ++g)
    for (uint32_t j = count; j < kTile; ++j) s.p[g][j] = -__builtin_inff();
}

// Turns scores into weights, and scales what was summed so far: by 1, which changes nothing, if the maximum stays.
template <int Group> HG_INLINE void rescale(const Attention &a, State<Group> &s) {
  for (int g = 0; g < Group; ++g) {
    const F32x16 scores = hg::load(s.p[g]);
    const float max = hg::max_lane(scores);
    if (max > s.max[g]) {
      const float keep = hg::exp(s.max[g] - max);
      s.max[g] = max;
      s.sum[g] = s.sum[g] * keep;
      for (uint32_t i = 0; i < a.paging.dim; i += 16)
        hg::store<float, 16>(s.out[g] + i, hg::load(s.out[g] + i) * hg::splat(keep));
    }
    const F32x16 weights = hg::exp(scores - hg::splat(s.max[g]));
    s.sum[g] = s.sum[g] + hg::sum(weights);
    hg::store<float, 16>(s.p[g], weights);
  }
}

template <int Group>
HG_INLINE void add_values(const Attention &a, State<Group> &s, const hg::f16 *const *keys, uint32_t count) {
  const uint64_t distance = hg::value_distance(a.paging);
  const uint32_t dim = a.paging.dim, whole = dim / 16 * 16;
  const auto add = [&](uint32_t i, auto &&value) HG_INLINE_LAMBDA {
    F32x16 acc[Group];
#pragma GCC unroll 4
    for (int g = 0; g < Group; ++g) acc[g] = hg::load(s.out[g] + i);
    for (uint32_t j = 0; j < count; ++j) {
      const F32x16 v = value(keys[j] + distance + i);
#pragma GCC unroll 4
      for (int g = 0; g < Group; ++g) acc[g] = hg::fma(hg::splat(s.p[g][j]), v, acc[g]);
    }
#pragma GCC unroll 4
    for (int g = 0; g < Group; ++g) hg::store<float, 16>(s.out[g] + i, acc[g]);
  };
  for (uint32_t i = 0; i < whole; i += 16) add(i, [](const hg::f16 *p) HG_INLINE_LAMBDA { return hg::load_as_f32(p); });
  if (whole < dim) add(whole, [&](const hg::f16 *p) HG_INLINE_LAMBDA { return hg::load_tail_as_f32(p, int(dim - whole)); });
}

template <int Group> void attend(const Attention &a, uint64_t t, uint32_t head) {
  const hg::Paging &paging = a.paging;
  State<Group> s;
  const uint32_t dim = paging.dim, whole = (dim + 15) / 16 * 16;
  for (int g = 0; g < Group; ++g) {
    for (uint32_t i = 0; i < whole; ++i) {
      s.q[g][i] = i < dim ? a.q[t * a.q_token_stride + (head + g) * a.q_head_stride + i] : 0.0f;
      s.out[g][i] = 0.0f;
    }
    s.max[g] = -__builtin_inff();
    s.sum[g] = 0.0f;
  }
  const int32_t row = a.rows[t], position = a.positions[t];
  const uint32_t length = hg::in_table(paging, row, position) ? uint32_t(position) + 1 : 0;
  const int32_t *table = a.tables + (length ? uint64_t(row) * paging.table_width : 0);
  const uint32_t kv_head = head / (a.heads / paging.kv_heads);
  const hg::f16 *next = nullptr;  // the next key, of the first `slot` of its block
  for (uint32_t from = 0, slot = paging.block_tokens; from < length; from += kTile) {
    const hg::f16 *keys[kTile];
    const uint32_t count = uint32_t(hg::min_of(kTile, length - from));
    for (uint32_t j = 0; j < count; ++j, ++slot, next += dim) {
      if (slot == paging.block_tokens) {
        const int32_t block_index = *table++;
        next = a.cache + hg::key_offset(paging, block_index < 0 ? 0 : block_index, slot = 0, kv_head);
      }
      keys[j] = next;
    }
    score<Group>(a, s, keys, count);
    rescale<Group>(a, s);
    add_values<Group>(a, s, keys, count);
  }
  for (int g = 0; g < Group; ++g) {
    const float inverse = length ? 1.0f / s.sum[g] : 0.0f;
    for (uint32_t i = 0; i < dim; ++i) a.out[(t * a.heads + head + g) * dim + i] = s.out[g][i] * inverse;
  }
}

// A block of the grid is a group of heads of a row; the rows of a group follow each other, for they read the same keys.
// Rows are taken from both ends in turn: in a chunk of a prompt the later ones cost more, and any range of blocks then
// costs about the same.
template <int Group> void attention(const Attention &a, uint32_t first, uint32_t last) {
  const uint64_t real = hg::real_rows(a.real, a.tokens), groups = a.heads / Group;
  const hg::Range blocks = hg::share(first, last, a.tokens * groups, real * groups);
  for (uint64_t block = blocks.begin; block < blocks.end; ++block) {
    const uint64_t turn = block % real;
    attend<Group>(a, turn % 2 ? real - 1 - turn / 2 : turn / 2, uint32_t(block / real * Group));
  }
}
}  // namespace

HG_POINTERS(Attention, q, cache, tables, rows, positions, real, out)
HG_MODULE("attention", hg::function<attention<1>>("paged_attention_1"), hg::function<attention<2>>("paged_attention_2"),
          hg::function<attention<3>>("paged_attention_3"), hg::function<attention<4>>("paged_attention_4"))
