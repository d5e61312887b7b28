// Convolution in two dimensions as dot products over (input channel, kernel row, kernel column), packed on the fly.
#include "dots.h"

namespace hg::aten {

struct Conv {
  void *out;
  const void *in, *weight, *bias;  // in [batch, groups * channels, height, width], bias [filters of all groups] or null
  uint64_t batch, groups, channels, filters;  // channels and filters of one group
  int64_t in_size[2], kernel[2], out_size[2], stride[2], padding[2], dilation[2];
  int64_t out_strides[4], in_strides[4], weight_strides[4], bias_stride;
  uint32_t out_type, in_type, weight_type, bias_type;
};

// Where the windows of up to kTileColumns output positions begin in the image.
struct Windows {
  int64_t y[kTileColumns], x[kTileColumns], offset[kTileColumns];
  uint32_t count;
  bool inside;  // no window reaches over an edge

  Windows(const Conv &p, uint64_t start, uint32_t positions) : count(positions), inside(true) {
    for (uint32_t i = 0; i < count; ++i) {
      y[i] = int64_t(start + i) / p.out_size[1] * p.stride[0] - p.padding[0];
      x[i] = int64_t(start + i) % p.out_size[1] * p.stride[1] - p.padding[1];
      offset[i] = y[i] * p.in_strides[2] + x[i] * p.in_strides[3];
      inside &= y[i] >= 0 && y[i] + (p.kernel[0] - 1) * p.dilation[0] < p.in_size[0] &&
                x[i] >= 0 && x[i] + (p.kernel[1] - 1) * p.dilation[1] < p.in_size[1];
    }
  }
};

// Calls body(j, line) for elements [k, k + depth) of the weights with the inputs that they meet in each window: zeros
// outside the image. Neighbouring windows are neighbours in memory, so they go innermost.
template <class T, class Body>
HG_INLINE void for_lines(const Conv &p, const Windows &windows, const void *base, uint64_t k, uint64_t depth, Body body) {
  const T *image = static_cast<const T *>(base);
  const int64_t area = p.kernel[0] * p.kernel[1];
  int64_t c = int64_t(k) / area, ky = int64_t(k) % area / p.kernel[1], kx = int64_t(k) % p.kernel[1];
  alignas(64) float line[kTileColumns] = {};
  for (uint64_t j = 0; j < depth; ++j) {
    const int64_t dy = ky * p.dilation[0], dx = kx * p.dilation[1];
    const T *shifted = image + c * p.in_strides[1] + dy * p.in_strides[2] + dx * p.in_strides[3];
    for (uint32_t i = 0; i < windows.count; ++i) {
      const uint64_t y = uint64_t(windows.y[i] + dy), x = uint64_t(windows.x[i] + dx);  // negative ones are large
      const bool inside = windows.inside || (y < uint64_t(p.in_size[0]) && x < uint64_t(p.in_size[1]));
      line[i] = inside ? to_f32(shifted[windows.offset[i]]) : 0.0f;
    }
    body(j, line);
    if (++kx == p.kernel[1]) {
      kx = 0;
      if (++ky == p.kernel[0]) ky = 0, ++c;
    }
  }
}
template <class Body>
HG_INLINE void for_lines_of(const Conv &p, const Windows &windows, const void *image, uint64_t k, uint64_t depth, Body body) {
  if (p.in_type == kF32) for_lines<float>(p, windows, image, k, depth, body);
  else if (p.in_type == kF16) for_lines<f16>(p, windows, image, k, depth, body);
  else for_lines<bf16>(p, windows, image, k, depth, body);
}

// A tile of the result: filters by output positions of one sample and group.
struct Tile {
  const Conv &p;
  int64_t sample, group, filter;
  uint64_t start, length;
  uint32_t rows, columns;
  const void *image;
  Windows windows;
  float products[kTileRows][kTileColumns];

  Tile(const Conv &params, int64_t sample_index, int64_t group_index, uint64_t first_filter, uint64_t position, uint64_t positions)
      : p(params), sample(sample_index), group(group_index), filter(group * int64_t(p.filters) + int64_t(first_filter)),
        start(position), length(p.channels * uint64_t(p.kernel[0] * p.kernel[1])),
        rows(uint32_t(min_of(kTileRows, p.filters - first_filter))), columns(uint32_t(min_of(kTileColumns, positions - position))),
        image(at(p.in, sample * p.in_strides[0] + group * int64_t(p.channels) * p.in_strides[1], p.in_type)),
        windows(p, start, columns) {}

  void weights(const float **vectors, uint64_t k, uint64_t depth, float (*packed)[kDepth]) const {
    const int64_t shape[] = {int64_t(p.channels), p.kernel[0], p.kernel[1]};
    for (uint32_t r = 0; r < rows; ++r) {
      const void *weight = at(p.weight, (filter + r) * p.weight_strides[0], p.weight_type);
      vectors[r] = Source<float>({3, shape}, weight, p.weight_type, p.weight_strides + 1).tile(k, depth, packed[r]);
    }
  }
  __attribute__((noinline)) void by_vectors() {
    alignas(64) float packed_a[kTileRows][kDepth], packed_b[kTileColumns][kDepth];
    const float *as[kTileRows], *bs[kTileColumns];
    for (uint32_t c = 0; c < columns; ++c) bs[c] = packed_b[c];
    DotTile tile;
    tile.clear(rows, columns);
    for (uint64_t k = 0; k < length; k += kDepth) {
      const uint64_t depth = min_of(kDepth, length - k);
      weights(as, k, depth, packed_a);
      for_lines_of(p, windows, image, k, depth, [&](uint64_t j, const float *line) {
        for (uint32_t i = 0; i < columns; ++i) packed_b[i][j] = line[i];
      });
      tile.add(as, rows, bs, columns, depth);
    }
    for (uint32_t r = 0; r < rows; ++r) for (uint32_t c = 0; c < columns; ++c) products[r][c] = sum(tile.acc[r][c]);
  }
  __attribute__((noinline)) void by_lines() {  // few filters, as in a depthwise convolution
    alignas(64) float packed_a[kFewRows][kDepth];
    const float *as[kFewRows];
    ColumnTile tile;
    tile.clear(rows);
    for (uint64_t k = 0; k < length; k += kDepth) {
      const uint64_t depth = min_of(kDepth, length - k);
      weights(as, k, depth, packed_a);
      for_lines_of(p, windows, image, k, depth, [&](uint64_t j, const float *line) { tile.add(as, rows, j, load(line)); });
    }
    for (uint32_t r = 0; r < rows; ++r) store<float, 16>(products[r], tile.sums(r, length));
  }
  void write_out() {
    for (uint32_t r = 0; r < rows; ++r) {
      const float bias = p.bias ? read_one<float>(at(p.bias, (filter + r) * p.bias_stride, p.bias_type), p.bias_type) : 0.0f;
      for (uint32_t c = 0; c < columns; ++c) products[r][c] = products[r][c] + bias;
      void *to = at(p.out, sample * p.out_strides[0] + (filter + r) * p.out_strides[1], p.out_type);
      scatter<float>({2, p.out_size}, to, p.out_type, p.out_strides + 2, start, columns, products[r]);
    }
  }
};

void conv2d(const Conv &p, uint32_t first, uint32_t last) {
  const uint64_t positions = uint64_t(p.out_size[0] * p.out_size[1]);
  const uint64_t row_tiles = (p.filters + kTileRows - 1) / kTileRows, column_tiles = (positions + kTileColumns - 1) / kTileColumns;
  for (uint32_t block = first; block < last; ++block) {
    const uint64_t column_tile = block / row_tiles, plane = column_tile / column_tiles;
    Tile tile(p, int64_t(plane / p.groups), int64_t(plane % p.groups), block % row_tiles * kTileRows,
              column_tile % column_tiles * kTileColumns, positions);
    if (tile.rows <= kFewRows) tile.by_lines();
    else tile.by_vectors();
    tile.write_out();
  }
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::Conv, out, in, weight, bias)
HG_MODULE("aten_conv", hg::function<hg::aten::conv2d>("conv2d"))
