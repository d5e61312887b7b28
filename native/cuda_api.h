// The CUDA driver's entry points that we use: one table, each with the version that our signatures have.
//
// libcuda is opened lazily, so the package imports and works where there is none. Entry points come from
// cuGetProcAddress, asked for the version stated here: a newer header or driver changes nothing.
#pragma once
#include <cuda.h>

#include <memory>
#include <string>

#include "error.h"

// name, version in which it got the signature of the pinned headers (1000 * major + 10 * minor)
#define HG_CUDA_ENTRIES(X)               \
  X(cuInit, 2000)                        \
  X(cuDriverGetVersion, 2020)            \
  X(cuGetErrorName, 6000)                \
  X(cuGetErrorString, 6000)              \
  X(cuDeviceGetCount, 2000)              \
  X(cuDeviceGet, 2000)                   \
  X(cuDeviceGetAttribute, 2000)          \
  X(cuDeviceGetName, 2000)               \
  X(cuDevicePrimaryCtxRetain, 7000)      \
  X(cuDevicePrimaryCtxRelease, 11000)    \
  X(cuCtxGetId, 12000)                   \
  X(cuCtxPushCurrent, 4000)              \
  X(cuCtxPopCurrent, 4000)               \
  X(cuCtxSynchronize, 2000)              \
  X(cuCtxGetLimit, 3010)                 \
  X(cuCtxSetLimit, 3010)                 \
  X(cuMemGetInfo, 3020)                  \
  X(cuMemGetAllocationGranularity, 10020) \
  X(cuMemAddressReserve, 10020)          \
  X(cuMemAddressFree, 10020)             \
  X(cuMemCreate, 10020)                  \
  X(cuMemRelease, 10020)                 \
  X(cuMemMap, 10020)                     \
  X(cuMemUnmap, 10020)                   \
  X(cuMemSetAccess, 10020)               \
  X(cuMemHostAlloc, 2020)                \
  X(cuMemFreeHost, 2000)                 \
  X(cuMemcpyHtoDAsync, 3020)             \
  X(cuMemcpyDtoHAsync, 3020)             \
  X(cuThreadExchangeStreamCaptureMode, 10010) \
  X(cuMemcpyHtoD, 3020)                  \
  X(cuMemcpyDtoH, 3020)                  \
  X(cuMemsetD8, 3020)                    \
  X(cuPointerGetAttributes, 7000)        \
  X(cuModuleLoadData, 2000)              \
  X(cuModuleUnload, 2000)                \
  X(cuModuleGetFunction, 2000)           \
  X(cuModuleGetFunctionCount, 12040)     \
  X(cuModuleEnumerateFunctions, 12040)   \
  X(cuModuleGetGlobal, 3020)             \
  X(cuFuncLoad, 12040)                   \
  X(cuFuncGetName, 12030)                \
  X(cuFuncGetParamInfo, 12040)           \
  X(cuFuncGetModule, 11000)              \
  X(cuFuncGetAttribute, 2020)            \
  X(cuFuncSetAttribute, 9000)            \
  X(cuKernelGetFunction, 12000)          \
  X(cuKernelGetName, 12030)              \
  X(cuKernelGetAttribute, 12000)         \
  X(cuKernelSetAttribute, 12000)         \
  X(cuStreamCreate, 2000)                \
  X(cuStreamDestroy, 4000)               \
  X(cuStreamSynchronize, 2000)           \
  X(cuStreamQuery, 2000)                 \
  X(cuStreamWaitEvent, 3020)             \
  X(cuStreamBeginCapture, 10010)         \
  X(cuStreamEndCapture, 10000)           \
  X(cuStreamGetCaptureInfo, 12030)       \
  X(cuEventCreate, 2000)                 \
  X(cuEventDestroy, 4000)                \
  X(cuEventRecord, 2000)                 \
  X(cuEventSynchronize, 2000)            \
  X(cuEventQuery, 2000)                  \
  X(cuLaunchKernel, 4000)                \
  X(cuMemsetD8Async, 3020)               \
  X(cuMemcpyAsync, 4000)                 \
  X(cuGraphCreate, 10000)                \
  X(cuGraphDestroy, 10000)               \
  X(cuGraphAddNode, 12030)               \
  X(cuGraphDestroyNode, 10000)           \
  X(cuGraphAddDependencies, 12030)       \
  X(cuGraphGetNodes, 10000)              \
  X(cuGraphGetEdges, 12030)              \
  X(cuGraphNodeGetType, 10000)           \
  X(cuGraphKernelNodeGetParams, 12000)   \
  X(cuGraphMemsetNodeGetParams, 10000)   \
  X(cuGraphMemcpyNodeGetParams, 10000)   \
  X(cuGraphChildGraphNodeGetGraph, 10000) \
  X(cuGraphEventRecordNodeGetEvent, 11010) \
  X(cuGraphEventWaitNodeGetEvent, 11010) \
  X(cuGraphKernelNodeGetAttribute, 11000) \
  X(cuGraphKernelNodeSetAttribute, 11000) \
  X(cuGraphInstantiateWithFlags, 11040)  \
  X(cuGraphExecGetFlags, 12000)          \
  X(cuGraphExecDestroy, 10000)           \
  X(cuGraphLaunch, 10000)

namespace hg {

struct CudaApi {
#define HG_CUDA_MEMBER(name, version) decltype(&::name) name = nullptr;
  HG_CUDA_ENTRIES(HG_CUDA_MEMBER)
#undef HG_CUDA_MEMBER
  std::string library;  // what was opened: libcuda.so.1, or what HELIOGRAPH_LIBCUDA names
  decltype(&::cuGetProcAddress) lookup = nullptr;

  // An entry point, in this version; DriverError if there is none. The table holds those that every device needs.
  void *find(const char *name, int version) const;

  // The table, opened on first use and shared by all devices; dropped with the last of them. DriverError if there is
  // no such library, it lacks an entry point, or it cannot be initialised.
  static std::shared_ptr<const CudaApi> open();

  // The error for a failed call: OutOfMemoryError, DeviceFaultError, ModuleError or DriverError, with the symbolic
  // name, what it means and what to do.
  Error error(CUresult result, const char *call, const std::string &doing) const;
};

// Codes after which the context runs nothing any more: a kernel faulted, or the context is gone.
bool cuda_fatal(CUresult result);

}  // namespace hg
