// Which tokens are the largest, without sorting: radix selection over the bits of the logits.
//
// Tokens are ordered by logit, largest first, equals by id, lowest first. A set of the first tokens in that order is
// a `Cut`: all above a logit and the first few of those equal to it.
#pragma once
#include "kernel.h"

namespace hg {

struct Cut {
  uint32_t key;    // of the last logit that is in
  uint32_t equal;  // how many tokens of exactly this logit are in, by ascending id
};

// Monotone: a larger logit has a larger key; both zeros have the same. Not for NaN.
HG_INLINE uint32_t key_of(float logit) {
  const uint32_t u = bit_cast<uint32_t>(logit + 0.0f);
  return u >> 31 ? ~u : u | 0x80000000u;
}
HG_INLINE float logit_of(uint32_t key) { return bit_cast<float>(key >> 31 ? key & 0x7FFFFFFFu : ~key); }

constexpr int kBuckets = 2048;
constexpr int kLevels = 3;
constexpr int kShift[kLevels] = {21, 10, 0};
HG_INLINE uint32_t bucket_of(uint32_t key, int level) { return key >> kShift[level] & (level == 2 ? 1023u : 2047u); }
HG_INLINE bool same_above(uint32_t a, uint32_t b, int level) { return level == 0 || (a ^ b) >> kShift[level - 1] == 0; }

// The first `count` of n logits; 1 <= count <= n.
inline Cut cut_by_count(const float *logits, uint32_t n, uint32_t count) {
  uint32_t in_bucket[kBuckets];
  Cut cut = {0, count};
  for (int level = 0; level < kLevels; ++level) {
    memset(in_bucket, 0, sizeof in_bucket);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t key = key_of(logits[i]);
      if (same_above(key, cut.key, level)) ++in_bucket[bucket_of(key, level)];
    }
    uint32_t bucket = kBuckets - 1;
    for (; in_bucket[bucket] < cut.equal && bucket > 0; --bucket) cut.equal -= in_bucket[bucket];
    cut.key |= bucket << kShift[level];
  }
  return cut;
}

// The fewest first of n tokens whose mass reaches `share` of the whole: at least one. Token i has logit
// logits[ids[i]] and mass[i]; equal logits have equal masses. Masses are summed in f64, buckets from the top.
inline Cut cut_by_mass(const float *logits, const int32_t *ids, const float *mass, uint32_t n, float share) {
  double in_bucket[kBuckets];
  Cut cut = {0, 0};
  double before = 0.0, target = 0.0;
  for (int level = 0; level < kLevels; ++level) {
    memset(in_bucket, 0, sizeof in_bucket);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t key = key_of(logits[ids[i]]);
      if (same_above(key, cut.key, level)) in_bucket[bucket_of(key, level)] += double(mass[i]);
    }
    if (level == 0) {
      for (int b = kBuckets - 1; b >= 0; --b) target += in_bucket[b];
      target *= double(share);
    }
    uint32_t bucket = 0;  // the lowest with a mass, should rounding leave the target out of reach
    while (bucket < kBuckets - 1 && in_bucket[bucket] == 0.0) ++bucket;
    for (uint32_t b = kBuckets - 1; b > bucket; --b) {
      if (in_bucket[b] > 0.0 && before + in_bucket[b] >= target) {
        bucket = b;
        break;
      }
      before += in_bucket[b];
    }
    cut.key |= bucket << kShift[level];
  }
  for (uint32_t i = 0; i < n && (cut.equal == 0 || before < target); ++i) {
    if (key_of(logits[ids[i]]) != cut.key) continue;
    before += double(mass[i]);
    ++cut.equal;
  }
  return cut;
}

// Tokens in order of id: is this one in? Counts the equals down.
HG_INLINE bool take(Cut &cut, uint32_t key) {
  if (key != cut.key) return key > cut.key;
  if (cut.equal == 0) return false;
  --cut.equal;
  return true;
}

}  // namespace hg
