// Strided tensors of any stored type, read and written as tiles of one compute type.
//
// The ATen families compute in float (f32, f16, bf16), double (f64) or int64_t (integers and bool, which wrap when
// they are stored). A kernel reads a tile of each operand, whatever its type and strides, computes on plain arrays and
// writes the tile back; an operand that is stored as it is computed and lies contiguously is used in place.
// Ranks are 1 to kMaxRank; the Python side has dropped and merged dimensions. Strides are in elements.
#pragma once
#include "kernel.h"

namespace hg {

enum Type : uint32_t { kF32, kF64, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };  // ops/aten/element.py: CODES
constexpr uint32_t kMaxRank = 8;
constexpr uint64_t kTile = 512;

struct Boolean { uint8_t byte; };

template <class A, class B> constexpr bool kSame = false;
template <class A> constexpr bool kSame<A, A> = true;
template <class T> constexpr bool kHalf = kSame<T, f16> || kSame<T, bf16>;

template <class C> constexpr uint32_t kStoredAs = kSame<C, float> ? kF32 : kSame<C, double> ? kF64 : kI64;

// ---- one element -------------------------------------------------------------------------------------------------
template <class C, class T> HG_INLINE C widen(T x) {
  if constexpr (kSame<T, Boolean>) return C(x.byte != 0);
  else if constexpr (kHalf<T>) return C(to_f32(x));
  else return C(x);
}
template <class T, class C> HG_INLINE T narrow(C x) {
  if constexpr (kSame<T, Boolean>) return {uint8_t(x != C(0))};
  else if constexpr (kHalf<T>) return from_f32<T>(float(x));
  else if constexpr (sizeof(T) < 4) return T(int64_t(x));
  else return T(x);
}

// ---- runs ----------------------------------------------------------------------------------------------------------
// Elements [start, start + count) of a shape in row-major order, as runs along the last dimension: body(offsets, run)
// gets each operand's offset of the run's first element.
template <int Operands, class Body>
HG_INLINE void for_runs(uint32_t rank, const int64_t *shape, const int64_t *const (&strides)[Operands], uint64_t start,
                        uint64_t count, Body body) {
  const uint32_t last = rank - 1;
  int64_t at[kMaxRank], offset[Operands] = {};
  uint64_t rest = start;
  for (uint32_t d = rank; d-- > 0;) {
    at[d] = d == 0 ? int64_t(rest) : int64_t(rest % uint64_t(shape[d]));
    rest /= d == 0 ? 1 : uint64_t(shape[d]);
    for (int o = 0; o < Operands; ++o) offset[o] += at[d] * strides[o][d];
  }
  while (count > 0) {
    const uint64_t run = min_of(count, uint64_t(shape[last] - at[last]));
    body(offset, run);
    count -= run;
    at[last] += int64_t(run);
    for (int o = 0; o < Operands; ++o) offset[o] += int64_t(run) * strides[o][last];
    for (uint32_t d = last; d > 0 && at[d] == shape[d]; --d) {
      for (int o = 0; o < Operands; ++o) offset[o] += strides[o][d - 1] - shape[d] * strides[o][d];
      at[d] = 0;
      ++at[d - 1];
    }
  }
}
HG_INLINE int64_t offset_of(uint32_t rank, const int64_t *shape, const int64_t *strides, uint64_t index) {
  int64_t offset = 0;
  for (uint32_t d = rank; d-- > 0; index /= uint64_t(shape[d])) offset += int64_t(index % uint64_t(shape[d])) * strides[d];
  return offset;
}

// One function a pair of types; only what models do all the time has a loop of its own for stride 1. (Vectorised loops
// for every pair make a family take ten times as long to compile.)
template <class C, class T> constexpr bool kFrequent = kSame<C, T> || (kSame<C, float> && kHalf<T>) ||
                                                       (kSame<C, int64_t> && kSame<T, int32_t>) ||
                                                       (!kSame<C, double> && kSame<T, Boolean>);
#define HG_PLAIN_LOOP asm volatile("")  // in a loop's body: neither vectorised nor unrolled

// Both directions have one signature, so that one walk serves both: `strided` is of the stored type, `packed` of C.
using RunFunction = void (*)(void *strided, int64_t stride, uint64_t count, void *packed);

template <class C, class T> void widen_run(void *strided, int64_t stride, uint64_t count, void *packed) {
  const T *from = static_cast<const T *>(strided);
  C *to = static_cast<C *>(packed);
  uint64_t i = 0;
  if constexpr (kFrequent<C, T>) {
    if (stride == 1) {
      if constexpr (kHalf<T>)
        for (; i + 16 <= count; i += 16) store<float, 16>(to + i, load_as_f32<16>(from + i));
      else
        for (; i < count; ++i) to[i] = widen<C>(from[i]);
    }
  }
  for (; i < count; ++i) {
    HG_PLAIN_LOOP;
    to[i] = widen<C>(from[int64_t(i) * stride]);
  }
}
template <class C, class T> void narrow_run(void *strided, int64_t stride, uint64_t count, void *packed) {
  const C *from = static_cast<const C *>(packed);
  T *to = static_cast<T *>(strided);
  uint64_t i = 0;
  if constexpr (kFrequent<C, T>) {
    if (stride == 1) {
      if constexpr (kHalf<T>)
        for (; i + 16 <= count; i += 16) store_f32_as<16>(to + i, load<float, 16>(from + i));
      else
        for (; i < count; ++i) to[i] = narrow<T>(from[i]);
    }
  }
  for (; i < count; ++i) {
    HG_PLAIN_LOOP;
    to[int64_t(i) * stride] = narrow<T>(from[i]);
  }
}
#define HG_FOR_TYPES(run, C) {run<C, float>, run<C, double>, run<C, f16>, run<C, bf16>, run<C, int64_t>, run<C, int32_t>, \
                              run<C, int16_t>, run<C, int8_t>, run<C, uint8_t>, run<C, Boolean>}
template <class C> constexpr RunFunction kWiden[] = HG_FOR_TYPES(widen_run, C);  // by Type
template <class C> constexpr RunFunction kNarrow[] = HG_FOR_TYPES(narrow_run, C);

HG_INLINE int64_t item_bytes(uint32_t type) {
  constexpr uint8_t kBytes[] = {4, 8, 2, 2, 8, 4, 2, 1, 1, 1};
  return kBytes[type];
}

HG_INLINE const void *at(const void *base, int64_t offset, uint32_t type) {
  return static_cast<const char *>(base) + offset * item_bytes(type);
}
HG_INLINE void *at(void *base, int64_t offset, uint32_t type) { return static_cast<char *>(base) + offset * item_bytes(type); }

template <class C> HG_INLINE void read(const void *from, uint32_t type, int64_t stride, uint64_t count, C *to) {
  kWiden<C>[type](const_cast<void *>(from), stride, count, to);
}
template <class C> HG_INLINE void write(const C *from, uint64_t count, void *to, uint32_t type, int64_t stride) {
  kNarrow<C>[type](to, stride, count, const_cast<C *>(from));
}
template <class C> HG_INLINE C read_one(const void *from, uint32_t type) {
  C value;
  read(from, type, 1, 1, &value);
  return value;
}
template <class C> HG_INLINE void write_one(C value, void *to, uint32_t type) { write(&value, 1, to, type, 1); }

// ---- tiles -----------------------------------------------------------------------------------------------------------
struct Shape { uint32_t rank; const int64_t *extents; };

inline bool is_linear(Shape shape, const int64_t *strides) {
  int64_t expected = 1;
  for (uint32_t d = shape.rank; d-- > 0;) {
    if (shape.extents[d] != 1 && strides[d] != expected) return false;
    expected *= shape.extents[d];
  }
  return true;
}

inline __attribute__((noinline)) void walk(Shape shape, void *base, uint32_t type, const int64_t *strides, uint64_t start,
                                          uint64_t count, RunFunction body, char *packed, uint64_t packed_bytes) {
  const int64_t *const all[] = {strides};
  const int64_t step = strides[shape.rank - 1];
  for_runs<1>(shape.rank, shape.extents, all, start, count, [&](const int64_t(&offset)[1], uint64_t run) {
    body(at(base, offset[0], type), step, run, packed);
    packed += run * packed_bytes;
  });
}
template <class C>
HG_INLINE void gather(Shape shape, const void *base, uint32_t type, const int64_t *strides, uint64_t start, uint64_t count, C *to) {
  walk(shape, const_cast<void *>(base), type, strides, start, count, kWiden<C>[type], reinterpret_cast<char *>(to), sizeof(C));
}
template <class C>
HG_INLINE void scatter(Shape shape, void *base, uint32_t type, const int64_t *strides, uint64_t start, uint64_t count, const C *from) {
  walk(shape, base, type, strides, start, count, kNarrow<C>[type], reinterpret_cast<char *>(const_cast<C *>(from)), sizeof(C));
}

template <class C> HG_INLINE C constant(uint64_t bits) {  // doubles for real families, integers as they are
  if constexpr (kSame<C, int64_t>) return int64_t(bits);
  else return C(bit_cast<double>(bits));
}

// An operand to read. A null base is a constant.
template <class C> struct Source {
  Shape shape;
  const void *base;
  const int64_t *strides;
  uint32_t type;
  bool direct;
  C value;

  HG_INLINE Source(Shape s, const void *b, uint32_t t, const int64_t *st, uint64_t bits = 0)
      : shape(s), base(b), strides(st), type(t), direct(b && t == kStoredAs<C> && is_linear(s, st)), value(constant<C>(bits)) {}
  // Elements [start, start + count), count <= kTile: in place, or gathered into the buffer.
  HG_INLINE const C *tile(uint64_t start, uint64_t count, C *buffer) const {
    if (direct) return static_cast<const C *>(base) + start;
    if (base) gather(shape, base, type, strides, start, count, buffer);
    else for (uint64_t i = 0; i < count; ++i) buffer[i] = value;
    return buffer;
  }
};
// A single dimension of elements: a row of a matrix, a line along a dimension.
struct Line {
  int64_t extents[1], strides[1];
  HG_INLINE Line(uint64_t count, int64_t stride) : extents{int64_t(count)}, strides{stride} {}
  HG_INLINE Shape shape() const { return {1, extents}; }
};

}  // namespace hg
