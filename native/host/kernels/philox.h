// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011): a pure function of (key, counter), so a draw can be repeated from its seed and position alone.
#pragma once
#include <stdint.h>

#include "vector.h"

namespace hg {

struct Philox {
  uint32_t word[4];
};

HG_INLINE Philox philox4x32_10(uint32_t key0, uint32_t key1, Philox counter) {
  Philox c = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * c.word[0], b = uint64_t(0xCD9E8D57u) * c.word[2];
    c = {{uint32_t(b >> 32) ^ c.word[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ c.word[3] ^ key1, uint32_t(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// A number in [0, 1) with 53 bits: key = seed (low word first), counter = (position, 0, 0, 0), the first two words.
HG_INLINE double uniform(int64_t seed, int32_t position) {
  const uint64_t key = uint64_t(seed);
  const Philox out = philox4x32_10(uint32_t(key), uint32_t(key >> 32), {{uint32_t(position), 0, 0, 0}});
  return double((uint64_t(out.word[0]) << 32 | out.word[1]) >> 11) * 0x1p-53;
}

}  // namespace hg
