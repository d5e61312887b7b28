// The little that must be known of a shared object before the dynamic loader may see it, which trusts what it reads.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace hg {

// Why an object is no freestanding kernel module of these machines (e_machine); empty if it is one: 64 bits, one of the
// processors, all segments inside the file, none writable and executable, no executable stack, no needed libraries, no
// constructors, no thread-local storage, no relocated code, and one that can be unloaded. Loads nothing, never reads
// outside `bytes`. What is verified and what is loaded is checked here alone (M39).
std::string unfit_module(std::span<const uint8_t> bytes, std::span<const uint16_t> machines);

}  // namespace hg
