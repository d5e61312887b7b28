// Reserved addresses, physical allocations, mappings. "Device memory" is memory of this process at the same address.
#include <sys/mman.h>

#include <cstring>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {
namespace {

constexpr uint64_t kGranularity = 2ull << 20;

uint64_t reserve_pages(uint64_t address, uint64_t size, int flags) {
  void *got = mmap(reinterpret_cast<void *>(address), size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return got == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(got);
}

}  // namespace

CUresult accessible(uint64_t address, uint64_t size, bool write) {
  State &s = state();
  while (size) {
    for (const auto &[number, module] : s.modules)
      for (const auto &[name, global] : module.globals)
        if (address >= global.address && address + size <= global.address + global.size) return CUDA_SUCCESS;
    auto at = s.mappings.upper_bound(address);
    if (at == s.mappings.begin()) return CUDA_ERROR_ILLEGAL_ADDRESS;
    --at;
    const Mapping &mapping = at->second;
    if (address >= at->first + mapping.size || !(write ? mapping.writable : mapping.readable))
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    const uint64_t step = std::min(size, at->first + mapping.size - address);
    address += step;
    size -= step;
  }
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemGetInfo_v2(size_t *free, size_t *total) {
  FAKE_CONTEXT_CALL(cuMemGetInfo);
  const uint64_t used = memory_in_use();
  *total = s.memory_limit;
  *free = used < s.memory_limit ? s.memory_limit - used : 0;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                         CUmemAllocationGranularity_flags) {
  FAKE_CALL(cuMemGetAllocationGranularity);
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

// Driver 580.159 on an H200 puts what is smaller wherever it likes.
constexpr size_t kSmallestHinted = 32 << 20;

CUDA_ENTRY cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t, CUdeviceptr hint, unsigned long long flags) {
  FAKE_CONTEXT_CALL(cuMemAddressReserve);
  if (!size || size % kGranularity || flags) return CUDA_ERROR_INVALID_VALUE;
  uint64_t given = 0;
  if (s.ignored_hints > 0)
    --s.ignored_hints;
  else if (hint && size >= kSmallestHinted)
    given = reserve_pages(hint, size, MAP_FIXED_NOREPLACE);
  if (!given) given = reserve_pages(0, size, 0);
  if (!given) return CUDA_ERROR_OUT_OF_MEMORY;
  s.reservations[given] = size;
  *out = given;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemAddressFree(CUdeviceptr address, size_t size) {
  FAKE_CONTEXT_CALL(cuMemAddressFree);
  const auto at = s.reservations.find(address);
  if (at == s.reservations.end() || at->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto inside = s.mappings.lower_bound(address);
  if (inside != s.mappings.end() && inside->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  munmap(reinterpret_cast<void *>(address), size);
  s.reservations.erase(at);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                       unsigned long long flags) {
  FAKE_CONTEXT_CALL(cuMemCreate);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  if (!size || size % kGranularity || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (memory_in_use() + size > s.memory_limit) return CUDA_ERROR_OUT_OF_MEMORY;
  if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  *out = new_handle();
  s.allocations[*out] = size;
  if (prop->requestedHandleTypes) s.exportable.insert(*out);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemRelease(CUmemGenericAllocationHandle handle) {
  FAKE_CONTEXT_CALL(cuMemRelease);
  s.exportable.erase(handle);
  if (s.allocations.erase(handle)) return CUDA_SUCCESS;
  misuse("release of a released allocation");
  return CUDA_ERROR_INVALID_VALUE;
}

CUDA_ENTRY cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags) {
  FAKE_CONTEXT_CALL(cuMemMap);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  const auto allocation = s.allocations.find(handle);
  if (allocation == s.allocations.end() || offset || flags || size != allocation->second)
    return CUDA_ERROR_INVALID_VALUE;
  auto around = s.reservations.upper_bound(address);
  if (around == s.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  --around;
  if (address + size > around->first + around->second) return CUDA_ERROR_INVALID_VALUE;
  for (const auto &[at, mapping] : s.mappings)
    if (at < address + size && address < at + mapping.size) return CUDA_ERROR_INVALID_VALUE;
  void *page = mmap(reinterpret_cast<void *>(address), size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (page == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // As on a device: what is there at first is left over from someone else.
  std::memset(page, 0xA5, std::min<size_t>(size, 4096));
  s.mappings[address] = {size, handle};
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemUnmap(CUdeviceptr address, size_t size) {
  FAKE_CONTEXT_CALL(cuMemUnmap);
  const auto at = s.mappings.find(address);
  if (at == s.mappings.end() || at->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  mmap(reinterpret_cast<void *>(address), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  s.mappings.erase(at);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
  FAKE_CONTEXT_CALL(cuMemSetAccess);
  const auto at = s.mappings.find(address);
  if (at == s.mappings.end() || at->second.size != size || count != 1) return CUDA_ERROR_INVALID_VALUE;
  at->second.readable = access->flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
  at->second.writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}

// Work of the default stream: done at once, or a copy's time later, whoever waits for it.
static void legacy(Context *context, CUdeviceptr to, size_t size, std::function<void()> effect) {
  if (state().copy_time.count() == 0) return effect();
  context->legacy = enqueue(context, context->legacy, state().copy_time, [=, effect = std::move(effect)] {
    if (accessible(to, size, true) != CUDA_SUCCESS) {
      misuse("a fill or a copy whose memory was unmapped under it");
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    effect();
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  FAKE_CONTEXT_CALL(cuMemcpyHtoD);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  if (accessible(to, size, true) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  // From pageable memory the call returns when the bytes are on their way: the default stream has them later.
  const auto *begin = static_cast<const uint8_t *>(from);
  legacy(context, to, size, [to, bytes = std::vector<uint8_t>(begin, begin + size)] {
    std::memcpy(reinterpret_cast<void *>(to), bytes.data(), bytes.size());
  });
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  FAKE_CONTEXT_CALL(cuMemcpyDtoH);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  if (accessible(from, size, false) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult failed = wait_until(context, context->legacy); failed != CUDA_SUCCESS) return failed;
  std::memcpy(to, reinterpret_cast<const void *>(from), size);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size) {
  FAKE_CONTEXT_CALL(cuMemsetD8);
  if (accessible(to, size, true) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  legacy(context, to, size, [to, value, size] {
    if (value == 0 && size >= kGranularity && size % 4096 == 0)
      madvise(reinterpret_cast<void *>(to), size, MADV_DONTNEED);  // zero pages, however large
    else
      std::memset(reinterpret_cast<void *>(to), value, size);
  });
  return CUDA_SUCCESS;
}

// ---- memory of the host ----

bool pinned(uint64_t address, uint64_t size) {
  const State &s = state();
  auto at = s.pinned.upper_bound(address);
  if (at == s.pinned.begin()) return false;
  --at;
  return address + size <= at->first + at->second;
}

CUDA_ENTRY cuMemHostAlloc(void **out, size_t size, unsigned flags) {
  FAKE_CONTEXT_CALL(cuMemHostAlloc);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  if (!size || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  void *page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(page, 0xA5, std::min<size_t>(size, 4096));  // left over from someone else
  s.pinned[reinterpret_cast<uint64_t>(page)] = size;
  *out = page;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuMemFreeHost(void *page) {
  FAKE_CONTEXT_CALL(cuMemFreeHost);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  const auto at = s.pinned.find(reinterpret_cast<uint64_t>(page));
  if (at == s.pinned.end()) {
    misuse("free of host memory that is not pinned");
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(page, at->second);
  s.pinned.erase(at);
  return CUDA_SUCCESS;
}

namespace {

// A copy whose memory is gone before its time comes is a misuse: a device would copy from or to whatever is there then.
CUresult copy(CUstream handle, CUdeviceptr device, uint64_t host, size_t size, bool to_device) {
  State &s = state();
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  if (accessible(device, size, to_device) != CUDA_SUCCESS || !pinned(host, size)) return CUDA_ERROR_INVALID_VALUE;
  stream->ready = enqueue(stream->context, stream->ready, s.copy_time, [=] {
    if (accessible(device, size, to_device) != CUDA_SUCCESS || !pinned(host, size)) {
      misuse("a copy between host and device whose memory was freed under it");
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    auto *on_device = reinterpret_cast<void *>(device), *on_host = reinterpret_cast<void *>(host);
    std::memcpy(to_device ? on_device : on_host, to_device ? on_host : on_device, size);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

}  // namespace

CUDA_ENTRY cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  FAKE_CONTEXT_CALL(cuMemcpyHtoDAsync);
  return copy(stream, to, reinterpret_cast<uint64_t>(from), size, true);
}

CUDA_ENTRY cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  FAKE_CONTEXT_CALL(cuMemcpyDtoHAsync);
  return copy(stream, from, reinterpret_cast<uint64_t>(to), size, false);
}

CUDA_ENTRY cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  FAKE_CALL(cuThreadExchangeStreamCaptureMode);
  std::swap(*mode, capture_mode());
  return CUDA_SUCCESS;
}

// ---- what is known of an address ----

namespace {

struct Known {
  unsigned type = 0, managed = 0;
  uint64_t base = 0, size = 0;
};

Known known(uint64_t address) {
  State &s = state();
  auto within = [address](uint64_t base, uint64_t size) { return address >= base && address - base < size; };
  for (const auto &[base, mapping] : s.mappings)
    if (within(base, mapping.size)) return {CU_MEMORYTYPE_DEVICE, 0, base, mapping.size};
  for (const auto &[base, size] : s.pinned)
    if (within(base, size)) return {CU_MEMORYTYPE_HOST, 0, base, size};
  for (const auto &[base, other] : s.elsewhere)
    if (within(base, other.first)) return {CU_MEMORYTYPE_DEVICE, other.second, base, other.first};
  for (const auto &[number, module] : s.modules)
    for (const auto &[name, global] : module.globals)
      if (within(global.address, global.size)) return {CU_MEMORYTYPE_DEVICE, 0, global.address, global.size};
  return {};
}

}  // namespace

CUDA_ENTRY cuPointerGetAttributes(unsigned count, CUpointer_attribute *ids, void **values, CUdeviceptr address) {
  FAKE_CONTEXT_CALL(cuPointerGetAttributes);
  const Known found = known(address);
  for (unsigned i = 0; i < count; ++i) switch (ids[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: std::memcpy(values[i], &found.type, sizeof found.type); break;
      case CU_POINTER_ATTRIBUTE_IS_MANAGED: std::memcpy(values[i], &found.managed, sizeof found.managed); break;
      case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: std::memcpy(values[i], &found.base, sizeof found.base); break;
      case CU_POINTER_ATTRIBUTE_RANGE_SIZE: std::memcpy(values[i], &found.size, sizeof found.size); break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
        const int ordinal = found.type ? context->device : -2;
        std::memcpy(values[i], &ordinal, sizeof ordinal);
        break;
      }
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  return CUDA_SUCCESS;
}

}  // namespace fake
