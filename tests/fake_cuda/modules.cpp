// Kernel images are text: a first line "fake-image sm_90", then one line a function, its name and the place of each
// parameter as offset:size. What a kernel does is in kernels.cpp, by name.
#include <cstring>
#include <sstream>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {

CUDA_ENTRY cuModuleLoadData(CUmodule *out, const void *image) {
  FAKE_CONTEXT_CALL(cuModuleLoadData);
  std::istringstream text(static_cast<const char *>(image));
  std::string magic, arch, line;
  text >> magic >> arch;
  if (magic != "fake-image") return CUDA_ERROR_INVALID_IMAGE;
  if (arch != "sm_90") return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const uintptr_t number = new_handle();
  Module module{context, {}};
  std::getline(text, line);
  while (std::getline(text, line)) {
    std::istringstream words(line);
    Function function{number, {}, {}};
    words >> function.name;
    Param param{};
    char colon = 0;
    while (words >> param.offset >> colon >> param.size) function.params.push_back(param);
    if (function.name.empty()) continue;
    const uintptr_t handle = new_handle();
    module.functions[function.name] = handle;
    s.functions[handle] = std::move(function);
  }
  s.modules[number] = std::move(module);
  *out = handle<CUmodule>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuModuleUnload(CUmodule handle) {
  FAKE_CONTEXT_CALL(cuModuleUnload);
  Module *module = find(s.modules, handle, "module");
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto &[name, function] : module->functions) s.functions.erase(function);
  s.modules.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuModuleGetFunction(CUfunction *out, CUmodule handle_, const char *name) {
  FAKE_CONTEXT_CALL(cuModuleGetFunction);
  Module *module = find(s.modules, handle_, "module");
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const auto at = module->functions.find(name);
  if (at == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
  *out = handle<CUfunction>(at->second);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuModuleGetFunctionCount(unsigned *count, CUmodule handle) {
  FAKE_CONTEXT_CALL(cuModuleGetFunctionCount);
  Module *module = find(s.modules, handle, "module");
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  *count = static_cast<unsigned>(module->functions.size());
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuModuleEnumerateFunctions(CUfunction *out, unsigned count, CUmodule handle_) {
  FAKE_CONTEXT_CALL(cuModuleEnumerateFunctions);
  Module *module = find(s.modules, handle_, "module");
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto &[name, function] : module->functions)
    if (count-- > 0) *out++ = handle<CUfunction>(function);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuFuncGetName(const char **name, CUfunction handle) {
  FAKE_CONTEXT_CALL(cuFuncGetName);
  Function *function = find(s.functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
  FAKE_CONTEXT_CALL(cuFuncGetParamInfo);
  Function *function = find(s.functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= function->params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->params[index].offset;
  *size = function->params[index].size;
  return CUDA_SUCCESS;
}

}  // namespace fake
