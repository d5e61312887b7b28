// out[t] = weight[ids[t]] as f32. An id outside the table gives zeros: rows that only fill a bucket may hold anything.
#include "kernel.h"
#include "weights.h"

namespace {
struct Embedding {
  const int32_t *ids;     // [tokens]
  const uint8_t *weight;  // [entries] rows, weight_stride bytes apart
  const int32_t *real;    // [1] tokens, or null
  float *out;             // [tokens, dim]
  uint64_t weight_stride;
  uint32_t tokens, entries, dim;
};

// A block is a token.
template <class W> void embedding(const Embedding &p, uint32_t first, uint32_t last) {
  const hg::Range tokens = hg::share(first, last, p.tokens, hg::real_rows(p.real, p.tokens));
  for (uint64_t t = tokens.begin; t < tokens.end; ++t) {
    float *out = p.out + t * p.dim;
    const uint32_t id = uint32_t(p.ids[t]), whole = p.dim / 32 * 32;
    if (id >= p.entries) {
      for (uint32_t i = 0; i < p.dim; ++i) out[i] = 0.0f;
      continue;
    }
    const uint8_t *row = p.weight + uint64_t(id) * p.weight_stride;
    hg::decode<W>(row, 0, whole, out);
    if (whole < p.dim) {
      float rest[32];
      hg::decode<W>(row, whole, p.dim, rest);
      for (uint32_t i = whole; i < p.dim; ++i) out[i] = rest[i - whole];
    }
  }
}
}  // namespace

HG_POINTERS(Embedding, ids, weight, real, out)
HG_MODULE("embedding", hg::function<embedding<hg::Plain<float>>>("embedding_f32"),
          hg::function<embedding<hg::Plain<hg::bf16>>>("embedding_bf16"),
          hg::function<embedding<hg::Plain<hg::f16>>>("embedding_f16"),
          hg::function<embedding<hg::Q8_0>>("embedding_q8_0"),
          hg::function<embedding<hg::Q4_1>>("embedding_q4_1"))
