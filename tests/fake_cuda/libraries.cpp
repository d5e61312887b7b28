// Libraries and their kernels, and what is told of the images that are loaded.
//
// A library is text: one or more images (modules.cpp), one behind the other; or one host kernel module. An image
// becomes a module when something first needs it: inside whatever call touches one of its kernels.
#include <elf.h>

#include <cstring>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {

std::atomic<const Observer *> observer{nullptr};

void tell_loaded(Module &module, const std::string &image) {
  module.id = state().next_module++;
  const Observer *listener = observer;
  if (!listener) return;
  const std::string cubin = cubin_of(image);
  listener->module(true, module.id, cubin.data(), cubin.size());
}

void tell_unloaded(const Module &module) {
  if (const Observer *listener = observer) listener->module(false, module.id, nullptr, 0);
}

void load_inside(const char *name) {
  State &s = state();
  std::lock_guard lock(s.mutex);
  for (auto at = s.loads_inside.find(name); at != s.loads_inside.end(); at = s.loads_inside.find(name)) {
    Module internal{nullptr, {}};
    tell_loaded(internal, at->second);
    s.loads_inside.erase(at);
  }
}

namespace {

constexpr char kTextSection[] = ".fake.image";

std::vector<std::string> functions_of(const std::string &image) {
  std::vector<std::string> names;
  for (size_t line = image.find('\n'); line != std::string::npos; line = image.find('\n', line + 1)) {
    const size_t end = image.find_first_of(" \n", line + 1);
    const std::string name = image.substr(line + 1, end == std::string::npos ? end : end - line - 1);
    if (!name.empty() && name != "global") names.push_back(name);
  }
  return names;
}

}  // namespace

std::string cubin_of(const std::string &image) {
  if (image.compare(0, SELFMAG, ELFMAG) == 0) return image;
  std::string names(1, '\0'), body = image + '\0';
  std::vector<Elf64_Shdr> sections(1);
  auto add = [&](const std::string &name, uint32_t type, uint64_t offset, uint64_t size) {
    Elf64_Shdr section{};
    section.sh_name = static_cast<uint32_t>(names.size());
    section.sh_type = type;
    section.sh_offset = sizeof(Elf64_Ehdr) + offset;
    section.sh_size = size;
    sections.push_back(section);
    names += name + '\0';
  };
  add(kTextSection, SHT_PROGBITS, 0, body.size());
  for (const std::string &function : functions_of(image)) add(".text." + function, SHT_PROGBITS, 0, 0);
  add(".shstrtab", SHT_STRTAB, body.size(), names.size() + sizeof ".shstrtab");
  body += names;
  body.resize((body.size() + 7) / 8 * 8);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = 190;  // EM_CUDA
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof header;
  header.e_shoff = sizeof header + body.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(sections.size());
  header.e_shstrndx = static_cast<uint16_t>(sections.size() - 1);
  std::string out(reinterpret_cast<const char *>(&header), sizeof header);
  out += body;
  return out.append(reinterpret_cast<const char *>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
}

std::string text_of(const char *cubin) {
  if (std::memcmp(cubin, ELFMAG, SELFMAG)) return {};
  const auto *header = reinterpret_cast<const Elf64_Ehdr *>(cubin);
  if (header->e_machine != 190) return {};
  const auto *sections = reinterpret_cast<const Elf64_Shdr *>(cubin + header->e_shoff);
  const char *names = cubin + sections[header->e_shstrndx].sh_offset;
  for (unsigned i = 1; i < header->e_shnum; ++i)
    if (!std::strcmp(names + sections[i].sh_name, kTextSection)) return cubin + sections[i].sh_offset;
  return {};
}

namespace {

// The module of an image of a library, loaded now if it was not.
CUresult touch(Context *context, uintptr_t library, size_t image, uintptr_t &module) {
  State &s = state();
  Library &of = s.libraries[library];
  if (const auto at = of.modules.find(image); at != of.modules.end()) {
    module = at->second;
    return CUDA_SUCCESS;
  }
  if (CUresult refused = load_image(context, of.images[image], library, module); refused != CUDA_SUCCESS)
    return refused;
  of.modules[image] = module;
  return CUDA_SUCCESS;
}

CUresult touch(Context *context, const Kernel &kernel, uintptr_t &function) {
  uintptr_t module = 0;
  if (CUresult refused = touch(context, kernel.library, kernel.image, module); refused != CUDA_SUCCESS) return refused;
  function = state().modules[module].functions[kernel.name];
  return CUDA_SUCCESS;
}

CUresult load_library(CUlibrary *out, const char *code) {
  FAKE_CONTEXT_CALL(cuLibraryLoadData);
  const std::string cubin = text_of(code);
  const std::string text = cubin.empty() ? std::string(code) : cubin;
  if (text.compare(0, 10, "fake-image")) return CUDA_ERROR_INVALID_IMAGE;
  Library library;
  for (size_t at = 0; at != std::string::npos;) {
    const size_t next = text.find("\nfake-image", at);
    library.images.push_back(text.substr(at, next == std::string::npos ? next : next + 1 - at));
    at = next == std::string::npos ? next : next + 1;
  }
  const uintptr_t number = new_handle();
  for (size_t image = 0; image < library.images.size(); ++image)
    for (const std::string &name : functions_of(library.images[image])) {
      const uintptr_t kernel = new_handle();
      s.kernels[kernel] = {number, name, image, {}};
      library.kernels[name] = kernel;
    }
  s.libraries[number] = std::move(library);
  *out = handle<CUlibrary>(number);
  uintptr_t module = 0;
  for (size_t image = 0; s.eager && image < s.libraries[number].images.size(); ++image)
    if (CUresult refused = touch(context, number, image, module); refused != CUDA_SUCCESS) return refused;
  return CUDA_SUCCESS;
}

CUresult unload_library(CUlibrary handle) {
  FAKE_CONTEXT_CALL(cuLibraryUnload);
  Library *library = find(s.libraries, handle, "library");
  if (!library) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto &[image, module] : library->modules) unload_module(module);
  for (const auto &[name, kernel] : library->kernels) s.kernels.erase(kernel);
  s.libraries.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

}  // namespace

CUfunction as_function(CUfunction handle_) {
  State &s = state();
  const auto at = s.kernels.find(reinterpret_cast<uintptr_t>(handle_));
  if (at == s.kernels.end()) return handle_;
  uintptr_t function = 0;
  touch(current().back(), at->second, function);
  return handle<CUfunction>(function);
}

CUDA_ENTRY cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *options, void **values, unsigned count,
                             CUlibraryOption *more, void **more_values, unsigned more_count) {
  const cuLibraryLoadData_params params{out, code, options, values, count, more, more_values, more_count};
  return observed(FAKE_OBSERVED(cuLibraryLoadData), params,
                  [=] { return load_library(out, static_cast<const char *>(code)); });
}

CUDA_ENTRY cuLibraryUnload(CUlibrary handle) {
  const cuLibraryUnload_params params{handle};
  return observed(FAKE_OBSERVED(cuLibraryUnload), params, [=] { return unload_library(handle); });
}

CUDA_ENTRY cuLibraryGetKernel(CUkernel *out, CUlibrary handle_, const char *name) {
  const cuLibraryGetKernel_params params{out, handle_, name};
  return observed(FAKE_OBSERVED(cuLibraryGetKernel), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuLibraryGetKernel);
    Library *library = find(s.libraries, handle_, "library");
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    const auto at = library->kernels.find(name);
    if (at == library->kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *out = handle<CUkernel>(at->second);
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuLibraryGetModule(CUmodule *out, CUlibrary handle_) {
  const cuLibraryGetModule_params params{out, handle_};
  return observed(FAKE_OBSERVED(cuLibraryGetModule), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuLibraryGetModule);
    if (!find(s.libraries, handle_, "library")) return CUDA_ERROR_INVALID_HANDLE;
    uintptr_t module = 0;
    if (CUresult refused = touch(context, reinterpret_cast<uintptr_t>(handle_), 0, module); refused != CUDA_SUCCESS)
      return refused;
    *out = handle<CUmodule>(module);
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle_, const char *name) {
  const cuLibraryGetGlobal_params params{address, bytes, handle_, name};
  return observed(FAKE_OBSERVED(cuLibraryGetGlobal), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuLibraryGetGlobal);
    if (!find(s.libraries, handle_, "library")) return CUDA_ERROR_INVALID_HANDLE;
    uintptr_t module = 0;
    if (CUresult refused = touch(context, reinterpret_cast<uintptr_t>(handle_), 0, module); refused != CUDA_SUCCESS)
      return refused;
    const auto at = s.modules[module].globals.find(name);
    if (at == s.modules[module].globals.end()) return CUDA_ERROR_NOT_FOUND;
    *address = at->second.address;
    *bytes = at->second.size;
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuKernelGetFunction(CUfunction *out, CUkernel handle_) {
  const cuKernelGetFunction_params params{out, handle_};
  return observed(FAKE_OBSERVED(cuKernelGetFunction), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuKernelGetFunction);
    const Kernel *kernel = find(s.kernels, handle_, "kernel");
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    uintptr_t function = 0;
    if (CUresult refused = touch(context, *kernel, function); refused != CUDA_SUCCESS) return refused;
    *out = handle<CUfunction>(function);
    return CUDA_SUCCESS;
  });
}

// Also asked of functions, to learn whether they are kernels: no misuse.
CUDA_ENTRY cuKernelGetLibrary(CUlibrary *out, CUkernel handle_) {
  const cuKernelGetLibrary_params params{out, handle_};
  return observed(FAKE_OBSERVED(cuKernelGetLibrary), params, [=]() -> CUresult {
    FAKE_CALL(cuKernelGetLibrary);
    const auto at = s.kernels.find(reinterpret_cast<uintptr_t>(handle_));
    if (at == s.kernels.end()) return CUDA_ERROR_INVALID_HANDLE;
    *out = handle<CUlibrary>(at->second.library);
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuKernelGetName(const char **name, CUkernel handle) {
  const cuKernelGetName_params params{name, handle};
  return observed(FAKE_OBSERVED(cuKernelGetName), params, [=]() -> CUresult {
    FAKE_CALL(cuKernelGetName);
    const Kernel *kernel = find(s.kernels, handle, "kernel");
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->name.c_str();
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
  const cuKernelGetAttribute_params params{value, attribute, handle, device};
  return observed(FAKE_OBSERVED(cuKernelGetAttribute), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuKernelGetAttribute);
    Kernel *kernel = find(s.kernels, handle, "kernel");
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    uintptr_t function = 0;
    if (CUresult refused = touch(context, *kernel, function); refused != CUDA_SUCCESS) return refused;
    const auto at = kernel->attributes.find(attribute);
    *value = at == kernel->attributes.end() ? s.functions[function].initial[attribute] : at->second;
    return CUDA_SUCCESS;
  });
}

CUDA_ENTRY cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
  const cuKernelSetAttribute_params params{attribute, value, handle, device};
  return observed(FAKE_OBSERVED(cuKernelSetAttribute), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuKernelSetAttribute);
    Kernel *kernel = find(s.kernels, handle, "kernel");
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    uintptr_t function = 0;
    if (CUresult refused = touch(context, *kernel, function); refused != CUDA_SUCCESS) return refused;
    return set_attribute(s.functions[function], kernel->attributes, attribute, value);
  });
}

}  // namespace fake
