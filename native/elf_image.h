// The little that must be known of a shared object before the dynamic loader may see it, which trusts what it reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace hg {

// Why an object is no freestanding kernel module of this machine; empty if it is one: 64 bits, this processor, all
// segments inside the file, no needed libraries, no constructors, no thread-local storage, no relocated code, and
// one that can be unloaded. Never reads outside `bytes`.
std::string unfit_module(std::span<const uint8_t> bytes);

}  // namespace hg
