// The elementary functions and the conversions as kernels, for test_elementary.py.
#include "elementary.h"
#include "kernel.h"

namespace {
struct Map {
  const void *x;
  void *out;
  uint64_t count;  // a multiple of 16 for the vector forms
};

template <auto F> void vector_form(const Map &p, uint32_t, uint32_t) {
  const float *x = static_cast<const float *>(p.x);
  float *out = static_cast<float *>(p.out);
  for (uint64_t i = 0; i < p.count; i += 16) hg::store<float, 16>(out + i, F(hg::load(x + i)));
}
template <auto F> void scalar_form(const Map &p, uint32_t, uint32_t) {
  for (uint64_t i = 0; i < p.count; ++i) static_cast<float *>(p.out)[i] = F(static_cast<const float *>(p.x)[i]);
}
template <class T> void narrow(const Map &p, uint32_t, uint32_t) {
  const float *x = static_cast<const float *>(p.x);
  for (uint64_t i = 0; i < p.count; i += 16) hg::store_f32_as<16>(static_cast<T *>(p.out) + i, hg::load(x + i));
}
template <class T> void narrow_one(const Map &p, uint32_t, uint32_t) {
  for (uint64_t i = 0; i < p.count; ++i) static_cast<T *>(p.out)[i] = hg::from_f32<T>(static_cast<const float *>(p.x)[i]);
}
template <class T> void widen(const Map &p, uint32_t, uint32_t) {
  for (uint64_t i = 0; i < p.count; i += 16)
    hg::store<float, 16>(static_cast<float *>(p.out) + i, hg::load_as_f32(static_cast<const T *>(p.x) + i));
}
template <class T> void widen_one(const Map &p, uint32_t, uint32_t) {
  for (uint64_t i = 0; i < p.count; ++i) static_cast<float *>(p.out)[i] = hg::to_f32(static_cast<const T *>(p.x)[i]);
}
}  // namespace

HG_POINTERS(Map, x, out)
#define BOTH(name)                                                                            \
  hg::function<vector_form<[](hg::F32x16 x) { return hg::name(x); }>>(#name),                 \
      hg::function<scalar_form<[](float x) { return hg::name(x); }>>(#name "_one")
#define STORED(type)                                                                          \
  hg::function<narrow<hg::type>>("narrow_" #type), hg::function<narrow_one<hg::type>>("narrow_" #type "_one"), \
      hg::function<widen<hg::type>>("widen_" #type), hg::function<widen_one<hg::type>>("widen_" #type "_one")
HG_MODULE("elementary", BOTH(exp), BOTH(log), BOTH(sin), BOTH(cos), BOTH(tanh), BOTH(erf), STORED(f16), STORED(bf16))
