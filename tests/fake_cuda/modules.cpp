// Two kinds of kernel image. A host kernel module is loaded and really run, block after block: so the conformance suite
// brings its own kernels. The other kind is text: a first line "fake-image sm_90", then one line a function, its name
// and the place of each parameter as offset:size; its kernels do nothing.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <sstream>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {
namespace {

void add_function(Module &module, Function function) {
  const uintptr_t number = new_handle();
  module.functions[function.name] = number;
  state().functions[number] = std::move(function);
}

CUresult read_text(Module &module, uintptr_t number, const char *image) {
  std::istringstream text(image);
  std::string magic, arch, line;
  text >> magic >> arch;
  if (magic != "fake-image") return CUDA_ERROR_INVALID_IMAGE;
  if (arch != "sm_90") return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::getline(text, line);
  while (std::getline(text, line)) {
    std::istringstream words(line);
    Function function{number, {}, {}};
    Param param{};
    char colon = 0;
    words >> function.name;
    while (words >> param.offset >> colon >> param.size) function.params.push_back(param);
    if (!function.name.empty()) add_function(module, std::move(function));
  }
  return CUDA_SUCCESS;
}

size_t elf_size(const char *image) {
  const auto *header = reinterpret_cast<const Elf64_Ehdr *>(image);
  return header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
}

CUresult read_host_module(Module &module, uintptr_t number, const char *image) {
  const size_t size = elf_size(image);
  // The descriptor stays open as long as the library: a reused number would name an image that is loaded already.
  module.descriptor = memfd_create("fake-cuda-image", MFD_CLOEXEC);
  if (write(module.descriptor, image, size) != static_cast<ssize_t>(size)) return CUDA_ERROR_OPERATING_SYSTEM;
  module.library = dlopen(("/proc/self/fd/" + std::to_string(module.descriptor)).c_str(), RTLD_NOW | RTLD_LOCAL);
  auto *table = module.library ? static_cast<const hg_module *>(dlsym(module.library, "heliograph_module")) : nullptr;
  if (!table) return CUDA_ERROR_INVALID_IMAGE;
  for (uint32_t i = 0; i < table->function_count; ++i) {
    const hg_function &host = table->functions[i];
    add_function(module, {number, host.name, {{0, host.param_bytes}}, &host});
  }
  return CUDA_SUCCESS;
}

CUresult load_data(CUmodule *out, const void *image) {
  FAKE_CONTEXT_CALL(cuModuleLoadData);
  const auto *bytes = static_cast<const char *>(image);
  std::string text = text_of(bytes);
  if (text.empty()) text = std::memcmp(bytes, ELFMAG, SELFMAG) ? std::string(bytes) : std::string(bytes, elf_size(bytes));
  uintptr_t number = 0;
  if (CUresult refused = load_image(context, text, 0, number); refused != CUDA_SUCCESS) return refused;
  *out = handle<CUmodule>(number);
  return CUDA_SUCCESS;
}

CUresult unload(CUmodule handle) {
  FAKE_CONTEXT_CALL(cuModuleUnload);
  Module *module = find(s.modules, handle, "module");
  if (!module || module->of_library) return CUDA_ERROR_INVALID_HANDLE;
  unload_module(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

}  // namespace

// An image in text form, or a host kernel module whole.
CUresult load_image(Context *context, const std::string &image, uintptr_t of_library, uintptr_t &number) {
  number = new_handle();
  Module module{context, {}};
  module.of_library = of_library;
  const bool elf = image.compare(0, SELFMAG, ELFMAG) == 0;
  if (CUresult refused =
          elf ? read_host_module(module, number, image.data()) : read_text(module, number, image.c_str());
      refused != CUDA_SUCCESS)
    return refused;
  state().modules[number] = std::move(module);
  tell_loaded(state().modules[number], image);
  return CUDA_SUCCESS;
}

void unload_module(uintptr_t number) {
  State &s = state();
  Module &module = s.modules[number];
  tell_unloaded(module);
  for (const auto &[name, function] : module.functions) s.functions.erase(function);
  if (module.library) {
    dlclose(module.library);
    close(module.descriptor);
  }
  s.modules.erase(number);
}

CUDA_ENTRY cuModuleLoadData(CUmodule *out, const void *image) {
  const cuModuleLoadData_params params{out, image};
  return observed(FAKE_OBSERVED(cuModuleLoadData), params, [=] { return load_data(out, image); });
}

CUDA_ENTRY cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
  const cuModuleLoadDataEx_params params{out, image, count, options, values};
  return observed(FAKE_OBSERVED(cuModuleLoadDataEx), params, [=] { return load_data(out, image); });
}

CUDA_ENTRY cuModuleUnload(CUmodule handle) {
  const cuModuleUnload_params params{handle};
  return observed(FAKE_OBSERVED(cuModuleUnload), params, [=] { return unload(handle); });
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

CUDA_ENTRY cuFuncGetModule(CUmodule *out, CUfunction handle_) {
  FAKE_CONTEXT_CALL(cuFuncGetModule);
  if (s.kernels.count(reinterpret_cast<uintptr_t>(handle_))) return CUDA_ERROR_INVALID_HANDLE;
  Function *function = find(s.functions, handle_, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  *out = handle<CUmodule>(function->module);
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
