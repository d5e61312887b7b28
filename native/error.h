// Errors that cross into Python: a type name of heliograph.errors and the four things an error tells.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hg {

// `type` names a class in heliograph/errors.py; module.cpp raises that class with the four texts.
struct Error : std::runtime_error {
  Error(const char *type, std::string doing, std::string found, std::string required, std::string hint)
      : std::runtime_error(doing + ": found " + found + ", required " + required),
        type(type), doing(std::move(doing)), found(std::move(found)), required(std::move(required)),
        hint(std::move(hint)) {}
  const char *type;
  std::string doing, found, required, hint;
  std::vector<uint32_t> nodes;  // of the graph that was being read, which it is about (CaptureError)
};

}  // namespace hg
