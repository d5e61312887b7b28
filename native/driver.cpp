// What a device that lacks a part of the contract says.
#include "driver.h"

namespace hg {
namespace {

[[noreturn]] void no_globals(const std::string &name) {
  throw Error("ModuleError", "looking up variable " + name, "a module of a device without module variables",
              "a CUDA module", "keep what a kernel needs in a buffer");
}

}  // namespace

void Function::raise_attributes(std::span<const std::pair<uint32_t, int64_t>> attributes) {
  if (!attributes.empty())
    throw Error("UsageError", "setting attributes of function " + name(), "a function of a device without any",
                "no attributes", "only CUDA functions have attributes");
}

std::pair<uint64_t, uint64_t> Module::global_address(const std::string &name) const { no_globals(name); }
std::vector<uint8_t> Module::read_global(const std::string &name) const { no_globals(name); }
void Module::write_global(const std::string &name, std::span<const uint8_t>) { no_globals(name); }

uint64_t Executable::handle() {
  throw Error("UsageError", "reading the handle of an executable", "an executable of a device without handles",
              "an executable of a CUDA device", "launch it with launch()");
}

std::vector<uint32_t> Template::top_level() const {
  std::vector<uint32_t> own(node_count());
  for (uint32_t i = 0; i < own.size(); ++i) own[i] = i;
  return own;
}

}  // namespace hg
