// What every kernel family includes: vectors, storage types, the memory functions that a freestanding object must
// bring along, and the module table.
//
// A kernel is a function on its own parameter struct and a range of blocks:
//
//     struct Add { const float *x, *y; float *out; uint64_t count; };
//     HG_POINTERS(Add, x, y, out)                      // every pointer member, in order
//     void add_f32(const Add &p, uint32_t first, uint32_t last) { ... }
//     HG_MODULE("glue", hg::function<add_f32>("add_f32"))
//
// HG_POINTERS and HG_MODULE stand outside every namespace. HG_LEVEL is defined by the build.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "kernel_abi.h"
#include "number.h"
#include "vector.h"

// The compiler may call these for copies and clears that it does not inline. One .cpp is one object, so a hidden
// definition in this header is the only one in it.
extern "C" {
__attribute__((visibility("hidden"), used)) void *memcpy(void *to, const void *from, size_t size) {
  char *t = static_cast<char *>(to);
  const char *f = static_cast<const char *>(from);
  size_t i = 0;
  for (; i + 32 <= size; i += 32) hg::store<char, 32>(t + i, hg::load<char, 32>(f + i));
  for (; i < size; ++i) t[i] = f[i];
  return to;
}
__attribute__((visibility("hidden"), used)) void *memset(void *to, int byte, size_t size) {
  char *t = static_cast<char *>(to);
  for (size_t i = 0; i < size; ++i) t[i] = char(byte);
  return to;
}
__attribute__((visibility("hidden"), used)) void *memmove(void *to, const void *from, size_t size) {
  char *t = static_cast<char *>(to);
  const char *f = static_cast<const char *>(from);
  if (t <= f) for (size_t i = 0; i < size; ++i) t[i] = f[i];
  else for (size_t i = size; i-- > 0;) t[i] = f[i];
  return to;
}
}

namespace hg {

// ---- ranges of a grid ------------------------------------------------------------------------------------------
struct Range { uint64_t begin, end; };
HG_INLINE uint64_t min_of(uint64_t a, uint64_t b) { return a < b ? a : b; }
// The items of one block, `per_block` each, the last block holds the rest.
HG_INLINE Range items(uint64_t block, uint64_t per_block, uint64_t count) {
  const uint64_t begin = min_of(block * per_block, count);
  return {begin, min_of(begin + per_block, count)};
}

// ---- padding -----------------------------------------------------------------------------------------------------
// A bucket's last rows may be padding. `real` says how many rows are not, null that all of them are; a kernel computes
// those and leaves the results of the others as they were. A grid is made for all rows: a range of its blocks computes
// its share of the blocks that real rows need, so few real rows are spread over all workers as well.
HG_INLINE uint32_t real_rows(const int32_t *real, uint32_t rows) {
  if (real == nullptr) return rows;
  return *real < 0 ? 0 : uint32_t(min_of(uint64_t(*real), rows));
}
HG_INLINE Range share(uint32_t first, uint32_t last, uint64_t blocks, uint64_t needed) {
  if (first == last) return {0, 0};
  return {first * needed / blocks, last * needed / blocks};
}
HG_INLINE uint64_t blocks_of(uint64_t items, uint64_t per_block) { return (items + per_block - 1) / per_block; }

// ---- the module table ------------------------------------------------------------------------------------------
template <class Params> struct PointersOf;  // specialised by HG_POINTERS

template <class Params, void (*Kernel)(const Params &, uint32_t, uint32_t)>
void entry(const void *params, uint32_t first, uint32_t last) {
  Kernel(*static_cast<const Params *>(params), first, last);
}
template <auto Kernel> struct Entry;
template <class Params, void (*Kernel)(const Params &, uint32_t, uint32_t)> struct Entry<Kernel> {
  static constexpr hg_function describe(const char *name) {
    return {name, entry<Params, Kernel>, uint32_t(sizeof(Params)), PointersOf<Params>::count, PointersOf<Params>::at};
  }
};
template <auto Kernel> constexpr hg_function function(const char *name) { return Entry<Kernel>::describe(name); }

}  // namespace hg

#define HG_PARENS ()
#define HG_EXPAND(...) HG_EXPAND3(HG_EXPAND3(HG_EXPAND3(HG_EXPAND3(__VA_ARGS__))))
#define HG_EXPAND3(...) HG_EXPAND2(HG_EXPAND2(HG_EXPAND2(HG_EXPAND2(__VA_ARGS__))))
#define HG_EXPAND2(...) HG_EXPAND1(HG_EXPAND1(HG_EXPAND1(HG_EXPAND1(__VA_ARGS__))))
#define HG_EXPAND1(...) __VA_ARGS__
#define HG_OFFSETS(Params, member, ...) \
  uint32_t(offsetof(Params, member)), __VA_OPT__(HG_OFFSETS_AGAIN HG_PARENS(Params, __VA_ARGS__))
#define HG_OFFSETS_AGAIN() HG_OFFSETS

// Names the pointer members of a parameter struct. HG_NO_POINTERS is for a struct without any.
#define HG_POINTERS(Params, ...)                                                          \
  template <> struct hg::PointersOf<Params> {                                             \
    static constexpr uint32_t at[] = {HG_EXPAND(HG_OFFSETS(Params, __VA_ARGS__))};        \
    static constexpr uint32_t count = sizeof(at) / sizeof(at[0]);                         \
  };
#define HG_NO_POINTERS(Params)                                                            \
  template <> struct hg::PointersOf<Params> {                                             \
    static constexpr const uint32_t *at = nullptr;                                        \
    static constexpr uint32_t count = 0;                                                  \
  };

#define HG_MODULE(family, ...)                                                                                  \
  static constexpr hg_function heliograph_functions[] = {__VA_ARGS__};                                         \
  extern "C" __attribute__((visibility("default"))) const hg_module heliograph_module = {                     \
      HG_KERNEL_ABI, sizeof(heliograph_functions) / sizeof(hg_function), family, HG_LEVEL, heliograph_functions};
