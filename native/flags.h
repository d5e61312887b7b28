// Which instantiation flags there are, and which of them are supported: 0, 1, 8 and 9.
#pragma once
#include <cstdint>
#include <string>

namespace hg {

std::string flag_names(uint32_t flags);  // "AUTO_FREE_ON_LAUNCH (1) | UPLOAD (2)", "no flag (0)"
void check_flags(uint32_t flags);        // FlagsError naming the bits that are refused

}  // namespace hg
