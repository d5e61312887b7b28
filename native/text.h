// Texts of errors, put together without the streams of the C++ library.
//
// A stream relies on state that all of a process shares, and libraries that others load may bring their own: with
// PyTorch 2.11 for CUDA loaded, writing to a string stream here ended the process (2026-11-30). A test keeps them out.
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
