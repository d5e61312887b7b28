// Windows over images: pooling and resampling in two dimensions. One output element at a time, in row-major order of
// its window; f32, f16 and bf16 computed in f32.
#include "elementary64.h"
#include "strided.h"

namespace hg::aten {

struct Window {
  void *out, *indices;  // contiguous [planes, out rows, out columns]; indices i64, of a maximum only
  const void *in;
  uint64_t planes;      // batch * channels
  uint64_t channels;
  int64_t in_strides[4];
  int64_t in_size[2], out_size[2], kernel[2], stride[2], padding[2], dilation[2];
  int64_t divisor;       // of an average; 0: what lies inside
  double scale[2];       // of a resampling: input elements an output element
  uint32_t out_type, in_type, include_padding, align_corners;
};
constexpr uint64_t kOutputsPerBlock = 1024;  // ops/aten/window.py: OUTPUTS_PER_BLOCK

struct Image {
  const void *base;
  int64_t row, column;
  uint32_t type;
  HG_INLINE float pixel(int64_t y, int64_t x) const {
    const void *from = at(base, y * row + x * column, type);
    return type == kF32 ? *static_cast<const float *>(from) : read_one<float>(from, type);
  }
};
template <class Body> HG_INLINE void for_outputs(const Window &p, uint32_t first, uint32_t last, Body body) {
  const uint64_t area = uint64_t(p.out_size[0] * p.out_size[1]), end = min_of(uint64_t(last) * kOutputsPerBlock, p.planes * area);
  for (uint64_t i = uint64_t(first) * kOutputsPerBlock; i < end; ++i) {
    const uint64_t plane = i / area;
    const int64_t y = int64_t(i % area) / p.out_size[1], x = int64_t(i % area) % p.out_size[1];
    const int64_t origin = int64_t(plane / p.channels) * p.in_strides[0] + int64_t(plane % p.channels) * p.in_strides[1];
    const Image image = {at(p.in, origin, p.in_type), p.in_strides[2], p.in_strides[3], p.in_type};
    write_one<float>(body(image, i, y, x), at(p.out, int64_t(i), p.out_type), p.out_type);
  }
}
HG_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HG_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

void max_pool2d(const Window &p, uint32_t first, uint32_t last) {  // a NaN wins; the first among equals
  for_outputs(p, first, last, [&](Image image, uint64_t i, int64_t oy, int64_t ox) {
    const int64_t y0 = oy * p.stride[0] - p.padding[0], x0 = ox * p.stride[1] - p.padding[1];
    float best = -__builtin_inff();
    int64_t index = -1;
    for (int64_t ky = 0; ky < p.kernel[0]; ++ky)
      for (int64_t kx = 0; kx < p.kernel[1]; ++kx) {
        const int64_t y = y0 + ky * p.dilation[0], x = x0 + kx * p.dilation[1];
        if (y < 0 || y >= p.in_size[0] || x < 0 || x >= p.in_size[1]) continue;
        const float value = image.pixel(y, x);
        if (value > best || value != value || index < 0) best = value, index = y * p.in_size[1] + x;
      }
    static_cast<int64_t *>(p.indices)[i] = index;
    return best;
  });
}
HG_INLINE float total(Image image, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
  float sum = 0.0f;
  for (int64_t y = y0; y < y1; ++y)
    for (int64_t x = x0; x < x1; ++x) sum += image.pixel(y, x);
  return sum;
}
void avg_pool2d(const Window &p, uint32_t first, uint32_t last) {
  for_outputs(p, first, last, [&](Image image, uint64_t, int64_t oy, int64_t ox) {
    const int64_t y0 = oy * p.stride[0] - p.padding[0], x0 = ox * p.stride[1] - p.padding[1];
    const int64_t y1 = least(y0 + p.kernel[0], p.in_size[0] + p.padding[0]), x1 = least(x0 + p.kernel[1], p.in_size[1] + p.padding[1]);
    const int64_t top = most(y0, 0), left = most(x0, 0), bottom = least(y1, p.in_size[0]), right = least(x1, p.in_size[1]);
    const int64_t all = (y1 - y0) * (x1 - x0), inside = (bottom - top) * (right - left);
    return total(image, top, bottom, left, right) / float(p.divisor ? p.divisor : p.include_padding ? all : inside);
  });
}
void adaptive_avg_pool2d(const Window &p, uint32_t first, uint32_t last) {
  for_outputs(p, first, last, [&](Image image, uint64_t, int64_t oy, int64_t ox) {
    const int64_t y0 = oy * p.in_size[0] / p.out_size[0], y1 = ((oy + 1) * p.in_size[0] + p.out_size[0] - 1) / p.out_size[0];
    const int64_t x0 = ox * p.in_size[1] / p.out_size[1], x1 = ((ox + 1) * p.in_size[1] + p.out_size[1] - 1) / p.out_size[1];
    return total(image, y0, y1, x0, x1) / float((y1 - y0) * (x1 - x0));
  });
}
void upsample_nearest2d(const Window &p, uint32_t first, uint32_t last) {
  for_outputs(p, first, last, [&](Image image, uint64_t, int64_t oy, int64_t ox) {
    const int64_t y = int64_t(float(oy) * float(p.scale[0])), x = int64_t(float(ox) * float(p.scale[1]));
    return image.pixel(least(y, p.in_size[0] - 1), least(x, p.in_size[1] - 1));
  });
}
void upsample_bilinear2d(const Window &p, uint32_t first, uint32_t last) {
  const auto source = [&](int axis, int64_t o) {
    const float scale = float(p.scale[axis]);
    const float at = p.align_corners ? float(o) * scale : (float(o) + 0.5f) * scale - 0.5f;
    return at > 0.0f ? at : 0.0f;
  };
  for_outputs(p, first, last, [&](Image image, uint64_t, int64_t oy, int64_t ox) {
    const float sy = source(0, oy), sx = source(1, ox);
    const int64_t y0 = least(int64_t(sy), p.in_size[0] - 1), x0 = least(int64_t(sx), p.in_size[1] - 1);
    const int64_t y1 = least(y0 + 1, p.in_size[0] - 1), x1 = least(x0 + 1, p.in_size[1] - 1);
    const float fy = sy - float(y0), fx = sx - float(x0);
    const float above = image.pixel(y0, x0) * (1.0f - fx) + image.pixel(y0, x1) * fx;
    const float below = image.pixel(y1, x0) * (1.0f - fx) + image.pixel(y1, x1) * fx;
    return above * (1.0f - fy) + below * fy;
  });
}

}  // namespace hg::aten

HG_POINTERS(hg::aten::Window, out, indices, in)
#define HG_WINDOW(name) hg::function<hg::aten::name>(#name)
HG_MODULE("aten_window", HG_WINDOW(max_pool2d), HG_WINDOW(avg_pool2d), HG_WINDOW(adaptive_avg_pool2d),
          HG_WINDOW(upsample_nearest2d), HG_WINDOW(upsample_bilinear2d))
