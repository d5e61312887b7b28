#include "cuda_calls.h"

namespace hg {
namespace {

CallHandles of_node(const CUgraphNodeParams &params) {
  if (params.type != CU_GRAPH_NODE_TYPE_KERNEL) return {};
  return {.kernel = params.kernel.kern, .function = params.kernel.func};
}

}  // namespace

// The parameters of a call are laid out as NVIDIA's generated_cuda_meta.h says.
#define HG_CALL(name) case CUPTI_DRIVER_TRACE_CBID_##name
#define HG_PARAMS(name) (*static_cast<const name##_params *>(params))

CallHandles handles_of(CUpti_CallbackId call, const void *params, CUresult result) {
  const bool done = result == CUDA_SUCCESS;
  switch (call) {
    // Calls that give out what they load.
    HG_CALL(cuModuleLoad): return {.module = done ? *HG_PARAMS(cuModuleLoad).module : nullptr};
    HG_CALL(cuModuleLoadData): return {.module = done ? *HG_PARAMS(cuModuleLoadData).module : nullptr};
    HG_CALL(cuModuleLoadDataEx): return {.module = done ? *HG_PARAMS(cuModuleLoadDataEx).module : nullptr};
    HG_CALL(cuModuleLoadFatBinary): return {.module = done ? *HG_PARAMS(cuModuleLoadFatBinary).module : nullptr};
    HG_CALL(cuLibraryLoadData): return {.library = done ? *HG_PARAMS(cuLibraryLoadData).library : nullptr};
    HG_CALL(cuLibraryLoadFromFile): return {.library = done ? *HG_PARAMS(cuLibraryLoadFromFile).library : nullptr};
    // Calls on a module or library.
    HG_CALL(cuModuleGetFunction): return {.module = HG_PARAMS(cuModuleGetFunction).hmod};
    HG_CALL(cuModuleGetGlobal_v2): return {.module = HG_PARAMS(cuModuleGetGlobal_v2).hmod};
    HG_CALL(cuModuleEnumerateFunctions): return {.module = HG_PARAMS(cuModuleEnumerateFunctions).mod};
    HG_CALL(cuLibraryGetKernel): return {.library = HG_PARAMS(cuLibraryGetKernel).library};
    HG_CALL(cuLibraryGetGlobal): return {.library = HG_PARAMS(cuLibraryGetGlobal).library};
    HG_CALL(cuLibraryGetManaged): return {.library = HG_PARAMS(cuLibraryGetManaged).library};
    HG_CALL(cuLibraryGetUnifiedFunction): return {.library = HG_PARAMS(cuLibraryGetUnifiedFunction).library};
    HG_CALL(cuLibraryGetModule):
      return {.library = HG_PARAMS(cuLibraryGetModule).library,
              .module = done ? *HG_PARAMS(cuLibraryGetModule).pMod : nullptr};
    // Calls on a kernel.
    HG_CALL(cuKernelGetFunction):
      return {.kernel = HG_PARAMS(cuKernelGetFunction).kernel,
              .function = done ? *HG_PARAMS(cuKernelGetFunction).pFunc : nullptr};
    HG_CALL(cuKernelGetAttribute): return {.kernel = HG_PARAMS(cuKernelGetAttribute).kernel};
    HG_CALL(cuKernelSetAttribute): return {.kernel = HG_PARAMS(cuKernelSetAttribute).kernel};
    HG_CALL(cuKernelSetCacheConfig): return {.kernel = HG_PARAMS(cuKernelSetCacheConfig).kernel};
    HG_CALL(cuKernelGetParamInfo): return {.kernel = HG_PARAMS(cuKernelGetParamInfo).kernel};
    // Calls on a function.
    HG_CALL(cuFuncGetAttribute): return {.function = HG_PARAMS(cuFuncGetAttribute).hfunc};
    HG_CALL(cuFuncSetAttribute): return {.function = HG_PARAMS(cuFuncSetAttribute).hfunc};
    HG_CALL(cuFuncSetCacheConfig): return {.function = HG_PARAMS(cuFuncSetCacheConfig).hfunc};
    HG_CALL(cuFuncGetParamInfo): return {.function = HG_PARAMS(cuFuncGetParamInfo).func};
    HG_CALL(cuFuncGetModule): return {.function = HG_PARAMS(cuFuncGetModule).hfunc};
    HG_CALL(cuFuncLoad): return {.function = HG_PARAMS(cuFuncLoad).function};
    HG_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor):
      return {.function = HG_PARAMS(cuOccupancyMaxActiveBlocksPerMultiprocessor).func};
    HG_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags):
      return {.function = HG_PARAMS(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags).func};
    HG_CALL(cuOccupancyMaxPotentialBlockSize):
      return {.function = HG_PARAMS(cuOccupancyMaxPotentialBlockSize).func};
    HG_CALL(cuOccupancyMaxPotentialClusterSize):
      return {.function = HG_PARAMS(cuOccupancyMaxPotentialClusterSize).func};
    HG_CALL(cuOccupancyMaxActiveClusters): return {.function = HG_PARAMS(cuOccupancyMaxActiveClusters).func};
    HG_CALL(cuOccupancyAvailableDynamicSMemPerBlock):
      return {.function = HG_PARAMS(cuOccupancyAvailableDynamicSMemPerBlock).func};
    HG_CALL(cuLaunchKernel): return {.function = HG_PARAMS(cuLaunchKernel).f};
    HG_CALL(cuLaunchKernel_ptsz): return {.function = HG_PARAMS(cuLaunchKernel_ptsz).f};
    HG_CALL(cuLaunchKernelEx): return {.function = HG_PARAMS(cuLaunchKernelEx).f};
    HG_CALL(cuLaunchKernelEx_ptsz): return {.function = HG_PARAMS(cuLaunchKernelEx_ptsz).f};
    HG_CALL(cuLaunchCooperativeKernel): return {.function = HG_PARAMS(cuLaunchCooperativeKernel).f};
    HG_CALL(cuLaunchCooperativeKernel_ptsz): return {.function = HG_PARAMS(cuLaunchCooperativeKernel_ptsz).f};
    HG_CALL(cuGraphAddKernelNode_v2):
      return {.kernel = HG_PARAMS(cuGraphAddKernelNode_v2).nodeParams->kern,
              .function = HG_PARAMS(cuGraphAddKernelNode_v2).nodeParams->func};
    HG_CALL(cuGraphAddNode): return of_node(*HG_PARAMS(cuGraphAddNode).nodeParams);
    HG_CALL(cuGraphAddNode_v2): return of_node(*HG_PARAMS(cuGraphAddNode_v2).nodeParams);
    default: return {};
  }
}

#undef HG_CALL
#undef HG_PARAMS

}  // namespace hg
