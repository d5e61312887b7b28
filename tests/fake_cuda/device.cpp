// Devices and contexts.
#include <cstdio>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {

CUDA_ENTRY cuInit(unsigned flags) {
  FAKE_CALL(cuInit);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  s.initialised = true;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDriverGetVersion(int *version) {
  FAKE_CALL(cuDriverGetVersion);
  *version = s.driver_version;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDeviceGetCount(int *count) {
  FAKE_CALL(cuDeviceGetCount);
  *count = s.devices;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDeviceGet(CUdevice *device, int ordinal) {
  FAKE_CALL(cuDeviceGet);
  if (ordinal < 0 || ordinal >= s.devices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  FAKE_CALL(cuDeviceGetAttribute);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = kSharedOptin; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUDA_ENTRY cuDeviceGetName(char *name, int room, CUdevice) {
  FAKE_CALL(cuDeviceGetName);
  std::snprintf(name, static_cast<size_t>(room), "Fake H200");
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuCtxGetLimit(size_t *value, CUlimit limit) {
  FAKE_CONTEXT_CALL(cuCtxGetLimit);
  const auto at = s.limits.find(limit);
  if (at == s.limits.end()) return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
  *value = at->second;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuCtxSetLimit(CUlimit limit, size_t value) {
  FAKE_CONTEXT_CALL(cuCtxSetLimit);
  const auto at = s.limits.find(limit);
  if (at == s.limits.end()) return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
  at->second = limit == CU_LIMIT_STACK_SIZE ? (value + 15) / 16 * 16 : value;  // the driver may choose more
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  FAKE_CALL(cuDevicePrimaryCtxRetain);
  Context *&context = s.primary[device];
  if (!context || context->gone) {
    context = new Context{device, s.next_id++};
    s.contexts.insert(context);
  }
  ++context->retained;
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKE_CALL(cuDevicePrimaryCtxRelease);
  Context *context = s.primary[device];
  if (!context || !context->retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retained > 0) return CUDA_SUCCESS;
  context->gone = true;
  if (context->sticky != CUDA_SUCCESS) drop_objects(context);  // nothing in it could be destroyed one by one
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuCtxGetId(CUcontext handle, unsigned long long *id) {
  FAKE_CALL(cuCtxGetId);
  auto *context = reinterpret_cast<Context *>(handle);
  if (!s.contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->gone) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuCtxPushCurrent(CUcontext handle) {
  FAKE_CALL(cuCtxPushCurrent);
  auto *context = reinterpret_cast<Context *>(handle);
  if (!s.contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->gone) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  current().push_back(context);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuCtxPopCurrent(CUcontext *out) {
  FAKE_CALL(cuCtxPopCurrent);
  if (current().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = reinterpret_cast<CUcontext>(current().back());
  current().pop_back();
  return CUDA_SUCCESS;
}

// Refused while any stream of the context captures, whoever asks and in whatever mode: "it is also invalid to query the
// execution status of or synchronize a broader handle which encompasses an active stream capture" (CUDA programming
// guide). A GPU was asked only in the thread that captures.
CUDA_ENTRY cuCtxSynchronize() {
  FAKE_CONTEXT_CALL(cuCtxSynchronize);
  bool capturing = false;
  for (const auto &[number, stream] : s.streams) {
    const auto capture = s.captures.find(stream.capture);
    if (stream.context != context || capture == s.captures.end()) continue;
    capturing = capture->second.invalid = true;
  }
  return capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : wait_until(context, context->ready);
}

}  // namespace fake
