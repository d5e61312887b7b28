#include "cuda_pointers.h"

namespace hg {

const char *name_of(PointerInfo::Kind kind) {
  switch (kind) {
    case PointerInfo::Kind::pinned: return "pinned";
    case PointerInfo::Kind::managed: return "managed";
    case PointerInfo::Kind::device: break;
  }
  return "device";
}

std::optional<PointerInfo> pointer_info(const CudaContext &context, uint64_t address) {
  const char *doing = "asking what memory is at an address";
  CudaCurrent current(context, doing);
  // Values of several widths, each read into eight zeroed bytes. Unlike the call for one attribute, this one is
  // documented not to fail for an address that it does not know: the values stay zero.
  uint64_t type = 0, managed = 0, ordinal = 0, base = 0, size = 0;
  CUpointer_attribute ids[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                               CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void *values[] = {&type, &managed, &ordinal, &base, &size};
  const CUresult result = context.api().cuPointerGetAttributes(5, ids, values, address);
  if (result == CUDA_ERROR_INVALID_VALUE) return std::nullopt;
  context.check(result, "cuPointerGetAttributes", doing);
  const auto memory = static_cast<uint32_t>(type);
  if (memory == 0) return std::nullopt;
  PointerInfo info{PointerInfo::Kind::device, base, size, static_cast<int>(ordinal)};
  if (memory == CU_MEMORYTYPE_HOST) info.kind = PointerInfo::Kind::pinned;
  if (static_cast<uint32_t>(managed)) info.kind = PointerInfo::Kind::managed;
  return info;
}

}  // namespace hg
