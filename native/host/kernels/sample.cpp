// One token a row from its logits; ops/sample/__init__.py states the meaning step by step. A row reads nothing of
// another row, and its draw is a function of its seed and position, so a row gives the same token in any batch.
#include "elementary.h"
#include "kernel.h"
#include "philox.h"
#include "select.h"

namespace {
using hg::F32x16;

constexpr uint32_t kBiases = 32;
constexpr uint32_t kMaxLogprobs = 20;
constexpr int32_t kNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr float kNone = -__builtin_inff();  // the logit of a token that cannot be chosen

struct Sample {
  const float *logits;                                   // [rows, vocabulary], logits_stride apart
  const int32_t *slots, *lengths, *prompts;              // slot -1 is padding
  const float *temperature;
  const int32_t *top_k;
  const float *top_p, *min_p, *presence, *frequency, *repetition;
  const int32_t *bias_ids;                               // [rows, 32], outside the vocabulary: unused
  const float *bias_values;
  const int32_t *mask_index;
  const uint32_t *masks;                                 // [mask_count, ceil(vocabulary / 32)]
  const int64_t *seed;
  const int32_t *sample_position, *logprob_count;
  const int32_t *history;                                // [slot_count, context]
  int32_t *last_token;                                   // [slot_count]
  const int32_t *real;                                   // [1] rows, or null
  int32_t *ids;                                          // [rows]
  float *logprobs;                                       // [rows, 21]
  int32_t *logprob_ids;                                  // [rows, 20]
  float *work, *mass;                                    // [rows, padded]
  int32_t *list;                                         // [rows, padded]
  uint64_t logits_stride;
  uint32_t rows, vocabulary, padded, slot_count, context, mask_count;  // padded: vocabulary in whole sixteens
};

struct Row {
  float *logits, *mass;  // padded: none, then whatever follows
  int32_t *list;
  uint32_t vocabulary, padded;
};

// ---- logprobs, before anything is changed ----------------------------------------------------------------------
// NaN can never be chosen; an infinity would make every difference undefined, so it is the largest number instead.
void copy_logits(const float *from, const Row &row) {
  const F32x16 largest = hg::splat(__FLT_MAX__), none = hg::splat(kNone);
  for (uint32_t i = 0; i < row.padded; i += 16) {
    const F32x16 x = i + 16 <= row.vocabulary ? hg::load(from + i) : hg::load_tail(from + i, int(row.vocabulary - i));
    hg::store<float, 16>(row.logits + i, hg::select<float, 16>(x == x, hg::min(x, largest), none));
  }
  for (uint32_t i = row.vocabulary; i < row.padded; ++i) row.logits[i] = kNone;
}

float largest(const Row &row) {
  F32x16 max = hg::splat(kNone);
  for (uint32_t i = 0; i < row.padded; i += 16) max = hg::max(hg::load(row.logits + i), max);
  return hg::max_lane(max);
}

uint32_t lowest_id_of(const Row &row, float logit) {
  const F32x16 wanted = hg::splat(logit);
  uint32_t i = 0;
  while (i + 16 < row.padded && !hg::any(hg::load(row.logits + i) == wanted)) i += 16;
  while (row.logits[i] != logit) ++i;
  return i;
}

// log(sum(exp(logit - max))): tiles of 1,024 in 16 lanes of f32, the tiles' sums in f64.
float log_sum(const Row &row, float max) {
  double total = 0.0;
  for (uint32_t tile = 0; tile < row.padded; tile += 1024) {
    F32x16 sum = hg::splat(0.0f);
    const uint32_t end = uint32_t(hg::min_of(tile + 1024, row.padded));
    for (uint32_t i = tile; i < end; i += 16) sum = sum + hg::exp(hg::load(row.logits + i) - hg::splat(max));
    total += double(hg::sum(sum));
  }
  return hg::log(float(total));
}

void top_logprobs(const Row &row, uint32_t count, float max, float log_total, float *logprobs, int32_t *ids) {
  hg::Cut cut = hg::cut_by_count(row.logits, row.vocabulary, count);
  const F32x16 least = hg::splat(hg::logit_of(cut.key));
  uint32_t n = 0;
  for (uint32_t i = 0; i < row.padded && n < count; i += 16) {
    if (!hg::any(hg::load(row.logits + i) >= least)) continue;
    for (uint32_t id = i; id < hg::min_of(i + 16, row.vocabulary); ++id) {
      if (!hg::take(cut, hg::key_of(row.logits[id]))) continue;
      uint32_t at = n++;
      for (; at > 0 && row.logits[ids[at - 1]] < row.logits[id]; --at) ids[at] = ids[at - 1];
      ids[at] = int32_t(id);
    }
  }
  for (uint32_t i = 0; i < n; ++i) logprobs[i] = (row.logits[ids[i]] - max) - log_total;
}

// ---- penalties, bias, mask -------------------------------------------------------------------------------------
void penalise(const Sample &p, uint64_t r, const Row &row) {
  const float presence = p.presence[r], frequency = p.frequency[r];
  const float repetition = p.repetition[r] > 0.0f ? p.repetition[r] : 1.0f;
  const int32_t length = p.lengths[r] < 0 ? 0 : int32_t(hg::min_of(uint64_t(p.lengths[r]), p.context));
  if (length == 0 || (presence == 0.0f && frequency == 0.0f && repetition == 1.0f)) return;
  const int32_t *history = p.history + uint64_t(p.slots[r]) * p.context;
  int32_t *generated = row.list;  // how often each token was; -1: it has its penalties
  memset(generated, 0, row.vocabulary * sizeof(int32_t));
  for (int32_t i = p.prompts[r] < 0 ? 0 : p.prompts[r]; i < length; ++i)
    if (uint32_t(history[i]) < row.vocabulary) ++generated[history[i]];
  for (int32_t i = 0; i < length; ++i) {
    if (uint32_t(history[i]) >= row.vocabulary || generated[history[i]] < 0) continue;
    float &x = row.logits[history[i]];
    int32_t &count = generated[history[i]];
    x = x > 0.0f ? x / repetition : x * repetition;
    if (count > 0) x = x - frequency * float(count) - presence;
    count = -1;
  }
}

void add_bias(const Sample &p, uint64_t r, const Row &row) {
  for (uint32_t i = 0; i < kBiases; ++i) {
    const uint32_t id = uint32_t(p.bias_ids[r * kBiases + i]);
    if (id < row.vocabulary) row.logits[id] += p.bias_values[r * kBiases + i];
  }
}

void apply_mask(const Sample &p, uint64_t r, const Row &row) {
  const uint32_t index = uint32_t(p.mask_index[r]);
  if (index >= p.mask_count) return;
  const uint32_t words = (row.vocabulary + 31) / 32;
  const uint32_t *mask = p.masks + uint64_t(index) * words;
  for (uint32_t w = 0; w < words; ++w) {
    if (mask[w] == ~0u) continue;
    for (uint32_t id = 32 * w; id < hg::min_of(32 * w + 32, row.vocabulary); ++id)
      if (!(mask[w] >> (id - 32 * w) & 1u)) row.logits[id] = kNone;
  }
}

// ---- the draw --------------------------------------------------------------------------------------------------
// Fills row.list with the tokens that top-k leaves, by ascending id, and row.mass with their
// exp((logit - max) / temperature).
uint32_t list_candidates(const Row &row, float max, float temperature, int32_t top_k) {
  hg::Cut cut = {hg::key_of(-__FLT_MAX__), ~0u};  // all that can be chosen
  if (top_k > 0 && uint32_t(top_k) < row.vocabulary) {
    const hg::Cut first = hg::cut_by_count(row.logits, row.vocabulary, uint32_t(top_k));
    if (first.key >= cut.key) cut = first;  // else fewer than k can be chosen
  }
  const F32x16 least = hg::splat(hg::logit_of(cut.key));
  const hg::I32x16 numbers = hg::load<int32_t, 16>(kNumbers);
  uint32_t n = 0;
  for (uint32_t i = 0; i < row.padded; i += 16) {
    const F32x16 x = hg::load(row.logits + i);
    if (!hg::any(x >= least)) continue;
    if (!hg::any(~(x > least))) {  // all of them, none of which the cut counts
      hg::store<int32_t, 16>(row.list + n, numbers + hg::splat<int32_t, 16>(int32_t(i)));
      hg::store<float, 16>(row.mass + n, x - hg::splat(max));
      n += 16;
      continue;
    }
    for (uint32_t id = i; id < hg::min_of(i + 16, row.vocabulary); ++id) {
      if (!hg::take(cut, hg::key_of(row.logits[id]))) continue;
      row.list[n] = int32_t(id);
      row.mass[n++] = row.logits[id] - max;
    }
  }
  for (uint32_t i = n; i % 16 != 0; ++i) row.mass[i] = 0.0f;  // whole sixteens, there is room
  for (uint32_t i = 0; i < n; i += 16)
    hg::store<float, 16>(row.mass + i, hg::exp(hg::load(row.mass + i) / hg::splat(temperature)));
  return n;
}

uint32_t keep_top_p(const Row &row, uint32_t n, float top_p) {
  if (!(top_p < 1.0f)) return n;
  hg::Cut cut = hg::cut_by_mass(row.logits, row.list, row.mass, n, top_p);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!hg::take(cut, hg::key_of(row.logits[row.list[i]]))) continue;
    row.list[kept] = row.list[i];
    row.mass[kept++] = row.mass[i];
  }
  return kept;
}

uint32_t keep_min_p(const Row &row, uint32_t n, float min_p) {  // the largest mass is exp(0) = 1
  if (!(min_p > 0.0f)) return n;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (row.mass[i] < min_p && row.mass[i] < 1.0f) continue;
    row.list[kept] = row.list[i];
    row.mass[kept++] = row.mass[i];
  }
  return kept;
}

// The first candidate at which the running sum exceeds u times the whole. Sums of tiles first, then one tile.
uint32_t draw(const Row &row, uint32_t n, double u) {
  constexpr uint32_t kTile = 512;
  const auto tile_sum = [&](uint32_t tile) {
    const uint32_t end = uint32_t(hg::min_of(tile + kTile, n));
    hg::Lanes<double, 8> sums = hg::splat<double, 8>(0.0);
    uint32_t i = tile;
    for (; i + 8 <= end; i += 8) sums = sums + hg::convert<double>(hg::load<float, 8>(row.mass + i));
    double sum = hg::sum(sums);
    for (; i < end; ++i) sum += double(row.mass[i]);
    return sum;
  };
  double total = 0.0, before = 0.0;
  for (uint32_t tile = 0; tile < n; tile += kTile) total += tile_sum(tile);
  const double target = u * total;
  uint32_t chosen = 0;
  for (uint32_t tile = 0; tile < n; tile += kTile) {
    const double sum = tile_sum(tile);
    if (before + sum <= target) {
      before += sum;
      continue;
    }
    for (uint32_t i = tile; i < hg::min_of(tile + kTile, n); ++i) {
      if (row.mass[i] > 0.0f) chosen = i;  // also the answer if rounding leaves the target out of reach
      before += double(row.mass[i]);
      if (before > target) break;
    }
    break;
  }
  return uint32_t(row.list[chosen]);
}

uint32_t choose(const Sample &p, uint64_t r, const Row &row) {
  const float max = largest(row);
  if (!(p.temperature[r] > 0.0f) || max == kNone) return lowest_id_of(row, max);
  uint32_t n = list_candidates(row, max, p.temperature[r], p.top_k[r]);
  n = keep_top_p(row, n, p.top_p[r]);
  n = keep_min_p(row, n, p.min_p[r]);
  return draw(row, n, hg::uniform(p.seed[r], p.sample_position[r]));
}

void clear_row(const Sample &p, uint64_t r) {
  for (uint32_t i = 0; i <= kMaxLogprobs; ++i) p.logprobs[r * (1 + kMaxLogprobs) + i] = 0.0f;
  for (uint32_t i = 0; i < kMaxLogprobs; ++i) p.logprob_ids[r * kMaxLogprobs + i] = -1;
  p.ids[r] = -1;
}

void sample_row(const Sample &p, uint64_t r) {
  clear_row(p, r);
  if (uint32_t(p.slots[r]) >= p.slot_count) return;
  float *logprobs = p.logprobs + r * (1 + kMaxLogprobs);
  int32_t *logprob_ids = p.logprob_ids + r * kMaxLogprobs;

  const Row row = {p.work + r * p.padded, p.mass + r * p.padded, p.list + r * p.padded, p.vocabulary, p.padded};
  copy_logits(p.logits + r * p.logits_stride, row);
  const float max = largest(row), log_total = log_sum(row, max);
  const int32_t wanted = p.logprob_count[r];
  if (wanted > 0) {
    const uint64_t count = hg::min_of(hg::min_of(uint64_t(wanted), kMaxLogprobs), p.vocabulary);
    top_logprobs(row, uint32_t(count), max, log_total, logprobs + 1, logprob_ids);
  }

  penalise(p, r, row);
  add_bias(p, r, row);
  apply_mask(p, r, row);
  const uint32_t id = choose(p, r, row);

  copy_logits(p.logits + r * p.logits_stride, row);
  logprobs[0] = (row.logits[id] - max) - log_total;
  p.ids[r] = int32_t(id);
  p.last_token[p.slots[r]] = int32_t(id);
}

// A block is a row.
void sample(const Sample &p, uint32_t first, uint32_t last) {
  const uint64_t real = hg::real_rows(p.real, p.rows);
  const hg::Range rows = hg::share(first, last, p.rows, real), padding = hg::share(first, last, p.rows, p.rows - real);
  for (uint64_t r = rows.begin; r < rows.end; ++r) sample_row(p, r);
  for (uint64_t r = padding.begin; r < padding.end; ++r) clear_row(p, real + r);
}
}  // namespace

HG_POINTERS(Sample, logits, slots, lengths, prompts, temperature, top_k, top_p, min_p, presence, frequency, repetition,
            bias_ids, bias_values, mask_index, masks, seed, sample_position, logprob_count, history, last_token, real, ids,
            logprobs, logprob_ids, work, mass, list)
HG_MODULE("sample", hg::function<sample>("sample_f32"))
