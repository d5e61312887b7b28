// Along one dimension: softmax, normalisation, running sums, sorting. A row is computed alone, in 16 lanes that are
// folded in one order, so its result does not depend on the other rows.
#include "elementary.h"
#include "strided.h"

namespace hg::aten {

template <class Row> HG_INLINE void for_rows(uint64_t rows, uint32_t per_block, uint32_t first, uint32_t last, Row row) {
  const uint64_t end = min_of(uint64_t(last) * per_block, rows);
  for (uint64_t r = uint64_t(first) * per_block; r < end; ++r) row(r);
}
// Tiles of a row: body(x, at, n), where x[n...] up to the next multiple of 16 is `absent`.
template <class Body> HG_INLINE void for_tiles(const Source<float> &row, uint64_t count, float absent, Body body) {
  alignas(64) float buffer[kTile];
  for (uint64_t at = 0; at < count; at += kTile) {
    const uint64_t n = min_of(kTile, count - at);
    const float *x = row.tile(at, n, buffer);
    if (n % 16 != 0) {
      if (x != buffer) __builtin_memcpy(buffer, x, n * sizeof(float));
      for (uint64_t i = n; i % 16 != 0; ++i) buffer[i] = absent;
      x = buffer;
    }
    body(x, at, n);
  }
}
template <class Lane> HG_INLINE float sum_row(const Source<float> &row, uint64_t count, float absent, Lane lane) {
  F32x16 acc = splat(0.0f);
  for_tiles(row, count, absent, [&](const float *x, uint64_t, uint64_t n) {
    F32x16 part = splat(0.0f);  // a tile for itself: long sums round less
    for (uint64_t i = 0; i < n; i += 16) part = part + lane(load(x + i));
    acc = acc + part;
  });
  return sum(acc);
}
HG_INLINE float max_row(const Source<float> &row, uint64_t count) {
  F32x16 acc = splat(-__builtin_inff());
  for_tiles(row, count, -__builtin_inff(), [&](const float *x, uint64_t, uint64_t n) {
    for (uint64_t i = 0; i < n; i += 16) acc = max(load(x + i), acc);
  });
  return max_lane(acc);
}
template <class Lane> HG_INLINE void write_row(const Source<float> &row, uint64_t count, void *out, uint32_t type, int64_t step, Lane lane) {
  const Line line(count, step);
  for_tiles(row, count, 0.0f, [&](const float *x, uint64_t start, uint64_t n) {
    alignas(64) float y[kTile];
    for (uint64_t i = 0; i < n; i += 16) store<float, 16>(y + i, lane(load(x + i), start + i));
    scatter(line.shape(), out, type, line.strides, start, n, y);
  });
}

// ---- softmax, running sums -----------------------------------------------------------------------------------------
struct Rows {
  void *out;
  const void *in;
  int64_t shape[kMaxRank], out_strides[kMaxRank], in_strides[kMaxRank];  // of the other dimensions
  uint64_t rows, length;
  int64_t out_step, in_step;
  uint32_t rank, out_type, in_type, rows_per_block;
};
struct Place { const void *in; void *out; };
HG_INLINE Place place(const Rows &p, uint64_t r) {
  return {at(p.in, offset_of(p.rank, p.shape, p.in_strides, r), p.in_type),
          at(p.out, offset_of(p.rank, p.shape, p.out_strides, r), p.out_type)};
}

template <bool kLog> void softmax(const Rows &p, uint32_t first, uint32_t last) {
  for_rows(p.rows, p.rows_per_block, first, last, [&](uint64_t r) {
    const Place where = place(p, r);
    const Line line(p.length, p.in_step);
    const Source<float> row(line.shape(), where.in, p.in_type, line.strides);
    const float largest = max_row(row, p.length);
    const F32x16 shift = splat(largest);
    // An absent element of -infinity adds exp(-infinity - largest) = 0.
    const float total = sum_row(row, p.length, -__builtin_inff(), [&](F32x16 x) { return hg::exp(x - shift); });
    if constexpr (kLog) {
      const F32x16 log_total = splat(hg::log(total));
      write_row(row, p.length, where.out, p.out_type, p.out_step, [&](F32x16 x, uint64_t) { return x - shift - log_total; });
    } else {
      const F32x16 all = splat(total);
      write_row(row, p.length, where.out, p.out_type, p.out_step, [&](F32x16 x, uint64_t) { return hg::exp(x - shift) / all; });
    }
  });
}
// In order, real numbers in f64.
template <class C> void cumsum(const Rows &p, uint32_t first, uint32_t last) {
  for_rows(p.rows, p.rows_per_block, first, last, [&](uint64_t r) {
    const Place where = place(p, r);
    C total = C(0);
    for (int64_t i = 0; i < int64_t(p.length); ++i) {
      total += read_one<C>(at(where.in, i * p.in_step, p.in_type), p.in_type);
      write_one(total, at(where.out, i * p.out_step, p.out_type), p.out_type);
    }
  });
}

// ---- normalisation ---------------------------------------------------------------------------------------------------
struct Norm {
  void *out, *mean, *rstd;                     // out contiguous; mean, rstd one a row
  const void *in, *weight, *bias;              // in contiguous rows; weight, bias contiguous or null
  uint64_t rows, length;
  uint64_t repeat;    // elements that share a weight: 1 in a layer norm, the pixels of a channel in a group norm
  uint64_t groups;    // rows that follow each other in the weights: 1 in a layer norm
  double epsilon;
  uint32_t out_type, stat_type, in_type, weight_type, bias_type, rows_per_block;
};
HG_INLINE float parameter(const void *base, uint32_t type, uint64_t index, float absent) {
  return base ? read_one<float>(at(base, int64_t(index), type), type) : absent;
}
void normalize(const Norm &p, uint32_t first, uint32_t last) {
  for_rows(p.rows, p.rows_per_block, first, last, [&](uint64_t r) {
    const Line line(p.length, 1);
    const Source<float> row(line.shape(), at(p.in, int64_t(r * p.length), p.in_type), p.in_type, line.strides);
    const float mean = sum_row(row, p.length, 0.0f, [](F32x16 x) { return x; }) / float(p.length);
    const F32x16 center = splat(mean);
    const float variance = sum_row(row, p.length, mean, [&](F32x16 x) { const F32x16 d = x - center; return d * d; }) / float(p.length);
    const float rstd = rsqrt(variance + float(p.epsilon));
    const F32x16 scale = splat(rstd);
    const uint64_t parameters = p.length / p.repeat, origin = r % p.groups * parameters;
    const Line weights(parameters, 1);
    const Source<float> weight(weights.shape(), p.weight ? at(p.weight, int64_t(origin), p.weight_type) : nullptr, p.weight_type,
                               weights.strides, bit_cast<uint64_t>(1.0));
    const Source<float> bias(weights.shape(), p.bias ? at(p.bias, int64_t(origin), p.bias_type) : nullptr, p.bias_type, weights.strides);
    void *out = at(p.out, int64_t(r * p.length), p.out_type);
    if (p.repeat == 1) {
      float w[kTile], b[kTile];
      const float *ws = w, *bs = b;
      write_row(row, p.length, out, p.out_type, 1, [&](F32x16 x, uint64_t i) {
        if (i % kTile == 0) ws = weight.tile(i, min_of(kTile, p.length - i), w), bs = bias.tile(i, min_of(kTile, p.length - i), b);
        const int n = int(min_of(16, p.length - i));
        return fma((x - center) * scale, load_tail(ws + i % kTile, n), load_tail(bs + i % kTile, n));
      });
    } else {
      for (uint64_t c = 0; c < parameters; ++c) {
        const Line pixels(p.repeat, 1);
        const Source<float> channel(pixels.shape(), at(p.in, int64_t(r * p.length + c * p.repeat), p.in_type), p.in_type, pixels.strides);
        const F32x16 w = splat(parameter(p.weight, p.weight_type, origin + c, 1.0f)), b = splat(parameter(p.bias, p.bias_type, origin + c, 0.0f));
        write_row(channel, p.repeat, at(out, int64_t(c * p.repeat), p.out_type), p.out_type, 1,
                  [&](F32x16 x, uint64_t) { return fma((x - center) * scale, w, b); });
      }
    }
    if (p.mean) write_one(mean, at(p.mean, int64_t(r), p.stat_type), p.stat_type);
    if (p.rstd) write_one(rstd, at(p.rstd, int64_t(r), p.stat_type), p.stat_type);
  });
}

// ---- sorting: the stable order of contiguous rows, NaN greatest ----------------------------------------------------------
struct Sort {
  void *order, *spare;  // i64 [rows, length]
  const void *keys;     // the compute type, [rows, length]
  uint64_t rows, length;
  uint32_t descending;
};
template <class C> void sort(const Sort &p, uint32_t first, uint32_t last) {
  const auto before = [&](C a, C b) {  // strictly
    return p.descending ? a > b || (a != a && b == b) : a < b || (a == a && b != b);
  };
  for_rows(p.rows, 1, first, last, [&](uint64_t r) {
    const C *keys = static_cast<const C *>(p.keys) + r * p.length;
    int64_t *to = static_cast<int64_t *>(p.order) + r * p.length, *from = static_cast<int64_t *>(p.spare) + r * p.length;
    bool odd = false;
    for (uint64_t width = 1; width < p.length; width *= 2) odd = !odd;
    if (!odd) { int64_t *swap = to; to = from; from = swap; }  // so that the last merge writes `order`
    for (uint64_t i = 0; i < p.length; ++i) from[i] = int64_t(i);
    for (uint64_t width = 1; width < p.length; width *= 2) {
      for (uint64_t start = 0; start < p.length; start += 2 * width) {
        uint64_t a = start, b = min_of(start + width, p.length);
        const uint64_t middle = b, end = min_of(start + 2 * width, p.length);
        for (uint64_t i = start; i < end; ++i)
          to[i] = b < end && (a == middle || before(keys[from[b]], keys[from[a]])) ? from[b++] : from[a++];
      }
      int64_t *swap = to; to = from; from = swap;
    }
  });
}

}  // namespace hg::aten

using namespace hg::aten;
HG_POINTERS(hg::aten::Rows, out, in)
HG_POINTERS(hg::aten::Norm, out, mean, rstd, in, weight, bias)
HG_POINTERS(hg::aten::Sort, order, spare, keys)
HG_MODULE("aten_rows", hg::function<softmax<false>>("softmax"), hg::function<softmax<true>>("log_softmax"),
          hg::function<cumsum<double>>("cumsum_f64"), hg::function<cumsum<int64_t>>("cumsum_i64"),
          hg::function<normalize>("normalize"), hg::function<hg::aten::sort<float>>("sort_f32"),
          hg::function<hg::aten::sort<double>>("sort_f64"), hg::function<hg::aten::sort<int64_t>>("sort_i64"))
