// The little that is read from an object file for the GPU.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cstdint>

namespace hg {

// The names of the functions that it has code for (sections .text.<name>), sorted; nothing if it is no whole object
// file for the GPU. Never reads outside `bytes`.
std::optional<std::vector<std::string>> functions_of_cubin(std::span<const uint8_t> bytes);

}  // namespace hg
