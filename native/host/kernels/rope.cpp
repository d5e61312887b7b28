// Rotary positions: the first `rotated` elements of each head are turned in pairs by positions[t] * inv_freq[i], the
// rest is copied. `half` pairs i with i + rotated/2 (Hugging Face), `interleaved` pairs 2i with 2i + 1 (GGUF Llama).
#include "elementary.h"
#include "kernel.h"

namespace {
constexpr uint32_t kMaxPairs = 512;  // the op's folder refuses more

struct Rope {
  const float *x;            // [tokens, heads, dim]
  const int32_t *positions;  // [tokens]
  const float *inv_freq;     // [rotated / 2]
  const int32_t *real;       // [1] tokens, or null
  float *out;                // [tokens, heads, dim], contiguous
  uint64_t token_stride, head_stride;
  uint32_t tokens, heads, dim, rotated;
};

struct Half {
  static HG_INLINE void turn(const float *x, const float *cos, const float *sin, uint32_t pairs, float *out) {
    for (uint32_t i = 0; i < pairs; ++i) {
      out[i] = hg::fma(x[i], cos[i], -(x[i + pairs] * sin[i]));
      out[i + pairs] = hg::fma(x[i + pairs], cos[i], x[i] * sin[i]);
    }
  }
};
struct Interleaved {
  static HG_INLINE void turn(const float *x, const float *cos, const float *sin, uint32_t pairs, float *out) {
    for (uint32_t i = 0; i < pairs; ++i) {
      out[2 * i] = hg::fma(x[2 * i], cos[i], -(x[2 * i + 1] * sin[i]));
      out[2 * i + 1] = hg::fma(x[2 * i + 1], cos[i], x[2 * i] * sin[i]);
    }
  }
};

// A block is a token.
template <class Convention> void rope(const Rope &p, uint32_t first, uint32_t last) {
  float cos[kMaxPairs], sin[kMaxPairs];
  const uint32_t pairs = p.rotated / 2;
  const hg::Range tokens = hg::share(first, last, p.tokens, hg::real_rows(p.real, p.tokens));
  for (uint64_t t = tokens.begin; t < tokens.end; ++t) {
    const float position = float(p.positions[t]);
    for (uint32_t i = 0; i < pairs; i += 8) {
      const int count = int(hg::min_of(8, pairs - i));
      const auto turned = hg::sin_cos(hg::splat<float, 8>(position) * hg::load_tail<float, 8>(p.inv_freq + i, count));
      hg::store<float, 8>(cos + i, turned.cos);
      hg::store<float, 8>(sin + i, turned.sin);
    }
    for (uint64_t h = 0; h < p.heads; ++h) {
      const float *x = p.x + t * p.token_stride + h * p.head_stride;
      float *out = p.out + (t * p.heads + h) * p.dim;
      Convention::turn(x, cos, sin, pairs, out);
      for (uint32_t i = 2 * pairs; i < p.dim; ++i) out[i] = x[i];
    }
  }
}
}  // namespace

HG_POINTERS(Rope, x, positions, inv_freq, real, out)
HG_MODULE("rope", hg::function<rope<Half>>("rope_half"), hg::function<rope<Interleaved>>("rope_interleaved"))
