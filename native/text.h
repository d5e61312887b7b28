// Texts of errors, put together without the streams of the C++ library.
//
// Libraries that torch loads for the whole process bring streams of another C++ library, whose locales do not know
// ours: with PyTorch 2.11 for CUDA the first number written to a stream ended the process. A test holds this.
#pragma once
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace hg {

inline std::string hex(uint64_t value) {
  char digits[24];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(value));
  return digits;
}

inline void append(std::string &out, std::string_view part) { out += part; }
inline void append(std::string &out, std::integral auto number) { out += std::to_string(number); }

// Strings and whole numbers, one behind the other.
template <class... Parts>
std::string text(const Parts &...parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

}  // namespace hg
