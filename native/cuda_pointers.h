// What the driver knows of an address.
#pragma once
#include <optional>

#include "cuda_context.h"

namespace hg {

struct PointerInfo {
  enum class Kind { device, pinned, managed };
  Kind kind;
  uint64_t base, size;  // of the allocation
  int device;           // its ordinal
};

const char *name_of(PointerInfo::Kind kind);

// Nothing where the driver knows no allocation. The context is made current.
std::optional<PointerInfo> pointer_info(const CudaContext &context, uint64_t address);

}  // namespace hg
