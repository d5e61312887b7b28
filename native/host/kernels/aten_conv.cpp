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

// The inputs that elements [k, k + depth) of the weights meet at one output position; zeros outside the image.
HG_INLINE void pack_position(const Conv &p, const void *image, int64_t position, uint64_t k, uint64_t depth, float *to) {
  const int64_t y0 = position / p.out_size[1] * p.stride[0] - p.padding[0];
  const int64_t x0 = position % p.out_size[1] * p.stride[1] - p.padding[1];
  const int64_t area = p.kernel[0] * p.kernel[1];
  int64_t c = int64_t(k) / area, ky = int64_t(k) % area / p.kernel[1], kx = int64_t(k) % p.kernel[1];
  for (uint64_t i = 0; i < depth;) {
    const int64_t y = y0 + ky * p.dilation[0];
    const bool inside = y >= 0 && y < p.in_size[0];
    for (; kx < p.kernel[1] && i < depth; ++kx, ++i) {
      const int64_t x = x0 + kx * p.dilation[1];
      to[i] = 0.0f;
      if (inside && x >= 0 && x < p.in_size[1]) {
        const void *from = at(image, c * p.in_strides[1] + y * p.in_strides[2] + x * p.in_strides[3], p.in_type);
        to[i] = p.in_type == kF32 ? *static_cast<const float *>(from) : read_one<float>(from, p.in_type);
      }
    }
    if (kx == p.kernel[1]) {
      kx = 0;
      if (++ky == p.kernel[0]) ky = 0, ++c;
    }
  }
}

void conv2d(const Conv &p, uint32_t first, uint32_t last) {
  const uint64_t positions = uint64_t(p.out_size[0] * p.out_size[1]), length = p.channels * uint64_t(p.kernel[0] * p.kernel[1]);
  const uint64_t row_tiles = (p.filters + kTileRows - 1) / kTileRows, column_tiles = (positions + kTileColumns - 1) / kTileColumns;
  const int64_t weight_shape[] = {int64_t(p.channels), p.kernel[0], p.kernel[1]};
  for (uint32_t block = first; block < last; ++block) {
    const uint64_t f0 = block % row_tiles * kTileRows, start = block / row_tiles % column_tiles * kTileColumns;
    const int64_t group = int64_t(block / row_tiles / column_tiles % p.groups), sample = int64_t(block / row_tiles / column_tiles / p.groups);
    const uint32_t rows = uint32_t(min_of(kTileRows, p.filters - f0)), columns = uint32_t(min_of(kTileColumns, positions - start));
    const int64_t filter = group * int64_t(p.filters) + int64_t(f0);
    const void *image = at(p.in, sample * p.in_strides[0] + group * int64_t(p.channels) * p.in_strides[1], p.in_type);
    alignas(64) float packed_a[kTileRows][kDepth], packed_b[kTileColumns][kDepth];
    const float *as[kTileRows], *bs[kTileColumns];
    DotTile tile;
    for (uint32_t r = 0; r < rows; ++r) for (uint32_t c = 0; c < columns; ++c) tile.acc[r][c] = splat(0.0f);
    for (uint64_t k = 0; k < length; k += kDepth) {
      const uint64_t depth = min_of(kDepth, length - k);
      for (uint32_t r = 0; r < rows; ++r) {
        const void *weight = at(p.weight, (filter + r) * p.weight_strides[0], p.weight_type);
        as[r] = Source<float>({3, weight_shape}, weight, p.weight_type, p.weight_strides + 1).tile(k, depth, packed_a[r]);
      }
      for (uint32_t c = 0; c < columns; ++c) {
        pack_position(p, image, int64_t(start + c), k, depth, packed_b[c]);
        bs[c] = packed_b[c];
      }
      tile.add(as, rows, bs, columns, depth);
    }
    for (uint32_t r = 0; r < rows; ++r) {
      const float bias = p.bias ? read_one<float>(at(p.bias, (filter + r) * p.bias_stride, p.bias_type), p.bias_type) : 0.0f;
      float line[kTileColumns];
      for (uint32_t c = 0; c < columns; ++c) line[c] = sum(tile.acc[r][c]) + bias;
      void *to = at(p.out, sample * p.out_strides[0] + (filter + r) * p.out_strides[1], p.out_type);
      scatter<float>({2, p.out_size}, to, p.out_type, p.out_strides + 2, start, columns, line);
    }
  }
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::Conv, out, in, weight, bias)
HG_MODULE("aten_conv", hg::function<hg::aten::conv2d>("conv2d"))
