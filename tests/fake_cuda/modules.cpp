// Two kinds of kernel image. A host kernel module is loaded and really run, block after block: so the conformance suite
// brings its own kernels. The other kind is text: a first line "fake-image sm_90", then one line a function, its name
// and the place of each parameter as offset:size, then what is fixed at compile time (shared=1024 bytes, threads=128 a
// block, cluster=2 blocks in x, must_cluster=1); its kernels do nothing. A line "global name size byte" is a variable.
// A host kernel module may say that it is for CUDA, as cores need it; such lines, and lines
// "local function bytes" (of a thread), then follow it up to a null byte.
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

#if defined(__x86_64__)
constexpr uint16_t kHostMachine = EM_X86_64;
#else
constexpr uint16_t kHostMachine = EM_AARCH64;
#endif

void add_function(Module &module, Function function) {
  const uintptr_t number = new_handle();
  module.functions[function.name] = number;
  function.initial = function.attributes;
  state().functions[number] = std::move(function);
}

void read_word(Function &function, const std::string &word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos) {
    const size_t colon = word.find(':');
    function.params.push_back({std::stoul(word), std::stoul(word.substr(colon + 1))});
    return;
  }
  const int value = std::stoi(word.substr(equals + 1));
  const std::string key = word.substr(0, equals);
  if (key == "shared") {
    function.static_shared = function.attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = value;
    function.attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = (48 << 10) - value;
  }
  if (key == "threads") function.threads = static_cast<unsigned>(value);
  if (key == "must_cluster") function.attributes[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] = value;
  if (key == "cluster") {
    function.cluster_fixed = true;
    function.attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] = value;
    function.attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT] = 1;
    function.attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH] = 1;
  }
}

// A variable: where the driver puts it, and what it holds after each load.
void add_global(Module &module, std::istringstream &words) {
  std::string name;
  uint64_t size = 0;
  int byte = 0;
  words >> name >> size >> byte;
  void *page = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(page, byte, size);
  module.globals[name] = {reinterpret_cast<uint64_t>(page), size};
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
    Function function;
    function.module = number;
    words >> function.name;
    if (function.name == "global") {
      add_global(module, words);
      continue;
    }
    for (std::string word; words >> word;) read_word(function, word);
    if (!function.name.empty()) add_function(module, std::move(function));
  }
  return CUDA_SUCCESS;
}

size_t elf_size(const char *image) {
  const auto *header = reinterpret_cast<const Elf64_Ehdr *>(image);
  return header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
}

// With the lines of variables that follow a module for CUDA.
size_t image_size(const char *image) {
  const size_t size = elf_size(image);
  const bool lines = reinterpret_cast<const Elf64_Ehdr *>(image)->e_machine == EM_CUDA;
  return lines ? size + std::strlen(image + size) + 1 : size;
}

CUresult read_host_module(Module &module, uintptr_t number, const char *image) {
  const size_t size = elf_size(image);
  std::string lines;
  // The descriptor stays open as long as the library: a reused number would name an image that is loaded already.
  module.descriptor = memfd_create("fake-cuda-image", MFD_CLOEXEC);
  if (write(module.descriptor, image, size) != static_cast<ssize_t>(size)) return CUDA_ERROR_OPERATING_SYSTEM;
  if (reinterpret_cast<const Elf64_Ehdr *>(image)->e_machine == EM_CUDA) {
    if (pwrite(module.descriptor, &kHostMachine, sizeof kHostMachine, offsetof(Elf64_Ehdr, e_machine)) != 2)
      return CUDA_ERROR_OPERATING_SYSTEM;
    lines = image + size;
  }
  module.library = dlopen(("/proc/self/fd/" + std::to_string(module.descriptor)).c_str(), RTLD_NOW | RTLD_LOCAL);
  auto *table = module.library ? static_cast<const hg_module *>(dlsym(module.library, "heliograph_module")) : nullptr;
  if (!table) return CUDA_ERROR_INVALID_IMAGE;
  for (uint32_t i = 0; i < table->function_count; ++i) {
    const hg_function &host = table->functions[i];
    Function function;
    function.module = number;
    function.name = host.name;
    function.params = {{0, host.param_bytes}};
    function.host = &host;
    add_function(module, std::move(function));
  }
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string name;
    words >> line;
    if (line == "global") add_global(module, words);
    if (line == "local" && words >> name) words >> state().functions[module.functions[name]].attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES];
  }
  return CUDA_SUCCESS;
}

CUresult load_data(CUmodule *out, const void *image) {
  FAKE_CONTEXT_CALL(cuModuleLoadData);
  const auto *bytes = static_cast<const char *>(image);
  std::string text = text_of(bytes);
  if (text.empty()) text = std::memcmp(bytes, ELFMAG, SELFMAG) ? std::string(bytes) : std::string(bytes, image_size(bytes));
  uintptr_t number = 0;
  if (CUresult refused = load_image(context, text, 0, number); refused != CUDA_SUCCESS) return refused;
  *out = handle<CUmodule>(number);
  return CUDA_SUCCESS;
}

// Unsafe in a capture, to be on the safe side: NVIDIA lists no such calls but cudaMalloc, and no GPU was asked.
CUresult unload(CUmodule handle) {
  FAKE_CONTEXT_CALL(cuModuleUnload);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
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
  for (const auto &[name, global] : module.globals) munmap(reinterpret_cast<void *>(global.address), global.size);
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
  const uintptr_t number = at->second;
  // Driver 580.159 on an H200 loads it now, and waits for what runs.
  if (!s.functions[number].loaded)
    if (CUresult failed = wait_until(context, context->ready); failed != CUDA_SUCCESS) return failed;
  *out = handle<CUfunction>(number);
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

CUDA_ENTRY cuFuncLoad(CUfunction handle) {
  FAKE_CONTEXT_CALL(cuFuncLoad);
  Function *function = find(s.functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  function->loaded = true;
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

namespace {

bool settable(CUfunction_attribute id) {
  return id == 8 || id == 9 || (id >= 11 && id <= 15);
}

}  // namespace

// As the driver: what is fixed at compile time and what no device has is refused. Lowering is allowed there; we promise
// not to, so it is a misuse here.
CUresult set_attribute(const Function &function, std::map<int, int> &attributes, CUfunction_attribute id, int value) {
  if (!settable(id)) return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && (value < 0 || value + function.static_shared > kSharedOptin))
    return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && (value < -1 || value > 100))
    return CUDA_ERROR_INVALID_VALUE;
  if (id >= 11 && id <= 13 && function.cluster_fixed) return CUDA_ERROR_NOT_PERMITTED;
  const auto now = attributes.find(id);
  if (value < (now == attributes.end() ? function.initial.at(id) : now->second)) misuse("a function attribute was lowered");
  attributes[id] = value;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuFuncGetAttribute(int *value, CUfunction_attribute id, CUfunction handle) {
  FAKE_CALL(cuFuncGetAttribute);
  Function *function = find(s.functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  const auto at = function->attributes.find(id);
  if (at == function->attributes.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = at->second;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuFuncSetAttribute(CUfunction handle, CUfunction_attribute id, int value) {
  FAKE_CALL(cuFuncSetAttribute);
  Function *function = find(s.functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  return set_attribute(*function, function->attributes, id, value);
}

CUDA_ENTRY cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule handle, const char *name) {
  FAKE_CONTEXT_CALL(cuModuleGetGlobal);
  Module *module = find(s.modules, handle, "module");
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  const auto at = module->globals.find(name);
  if (at == module->globals.end()) return CUDA_ERROR_INVALID_VALUE;
  *address = at->second.address;
  *size = at->second.size;
  return CUDA_SUCCESS;
}

}  // namespace fake
