#include "cuda_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <type_traits>

namespace hg {
namespace {

// What a code means and what to do, for those that users meet. The others get the driver's own sentence.
struct Meaning {
  CUresult code;
  const char *type;
  const char *meaning;
  const char *hint;
};
constexpr const char *kFaultHint = "the context is lost: start a new process";
constexpr Meaning kMeanings[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, "OutOfMemoryError", "the device has not enough free memory",
     "free device memory, or keep fewer executables (retain=\"template\" keeps none)"},
    {CUDA_ERROR_NO_DEVICE, "DriverError", "the driver sees no CUDA device",
     "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device"},
    {CUDA_ERROR_INVALID_DEVICE, "DriverError", "there is no device with this index", "choose a smaller device index"},
    {CUDA_ERROR_INVALID_IMAGE, "ModuleError", "the image is no kernel image that this driver can read",
     "capture again: the image does not fit this device or is damaged"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "ModuleError", "the image has no code for this GPU",
     "capture for this GPU's architecture"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "ModuleError", "the image's PTX is newer than the driver",
     "update the driver, or capture with an older toolkit"},
    {CUDA_ERROR_INVALID_PTX, "ModuleError", "the image's PTX does not compile", "capture again"},
    {CUDA_ERROR_NOT_FOUND, "ModuleError", "the module has no such function", "take a name from function_names()"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "DriverError", "the context was destroyed or reset by someone in this process",
     "open the device again; nothing of the old context can be used"},
    {CUDA_ERROR_INVALID_CONTEXT, "DriverError", "the context is not valid", "open the device again"},
    {CUDA_ERROR_DEINITIALIZED, "DriverError", "the driver is shutting down with this process",
     "reset graphs and close the device before the process ends"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "DeviceFaultError", "a kernel touched memory that is not mapped", kFaultHint},
    {CUDA_ERROR_LAUNCH_FAILED, "DeviceFaultError", "a kernel died", kFaultHint},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "DeviceFaultError", "a kernel ran into the device's time limit", kFaultHint},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "DeviceFaultError", "a kernel met an instruction this GPU does not have",
     kFaultHint},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "DeviceFaultError", "a kernel made a misaligned access", kFaultHint},
    {CUDA_ERROR_INVALID_ADDRESS_SPACE, "DeviceFaultError", "a kernel used an address of another space", kFaultHint},
    {CUDA_ERROR_INVALID_PC, "DeviceFaultError", "a kernel jumped outside its code", kFaultHint},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, "DeviceFaultError", "a kernel overran its call stack", kFaultHint},
    {CUDA_ERROR_ASSERT, "DeviceFaultError", "an assertion in a kernel failed", kFaultHint},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "DeviceFaultError", "device memory had an error that could not be corrected",
     "the GPU needs a reset or replacement"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "DriverError", "this call is not allowed while a stream is capturing",
     "do it before the capture"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "DriverError", "an earlier error ended this capture",
     "look at the first error of the capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "DriverError", "the capture was begun on another stream",
     "end it on the stream on which it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "DriverError",
     "a stream that was pulled into the capture was not joined again",
     "record an event on it and wait for that event on the first stream"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "DriverError",
     "work outside the capture was made to depend on work inside it", "keep the two apart, or capture both"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "DriverError", "the capture was begun by another thread",
     "begin and end a capture in one thread"},
    {CUDA_ERROR_INVALID_CLUSTER_SIZE, "DriverError", "the device cannot run clusters of this size",
     "use clusters of 8 blocks or fewer, which every device with clusters runs"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "DriverError",
     "a cooperative launch has more blocks than the device can run at once", "launch fewer blocks"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "DriverError",
     "a launch needs more registers or threads than a multiprocessor has", "launch with fewer threads a block"},
    {CUDA_ERROR_NOT_PERMITTED, "DriverError", "this was fixed when the code was compiled, or is not allowed here",
     "leave it as the code has it"},
    {CUDA_ERROR_UNSUPPORTED_LIMIT, "DriverError", "this device has no such limit", "take a name from limits()"},
    {CUDA_ERROR_CAPTURED_EVENT, "DriverError", "the event was recorded in a capture and marks no real work",
     "use another event outside the capture"},
};

const Meaning *meaning(CUresult code) {
  for (const Meaning &entry : kMeanings)
    if (entry.code == code) return &entry;
  return nullptr;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::shared_ptr<const CudaApi> load(const std::string &library) {
  const std::string doing = "opening the CUDA driver " + library;
  // Never closed: other libraries of the process (PyTorch) use it too, and it has threads of its own.
  void *handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error("DriverError", doing, dlerror(), "a CUDA driver library",
                "install the NVIDIA driver, or use the host device");
  auto api = std::make_shared<CudaApi>();
  api->library = library;
  // The symbol's own suffix: this is the one name that cannot be asked for with a version.
  api->lookup = reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(handle, "cuGetProcAddress_v2"));
  if (!api->lookup)
    throw Error("DriverError", doing, "no entry point cuGetProcAddress_v2", "a driver of CUDA 12.4 or newer",
                "update the NVIDIA driver");
  auto resolve = [&](const char *name, int version, auto &entry) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(api->find(name, version));
  };
#define HG_CUDA_RESOLVE(name, version) resolve(#name, version, api->name);
  HG_CUDA_ENTRIES(HG_CUDA_RESOLVE)
#undef HG_CUDA_RESOLVE
  if (CUresult result = api->cuInit(0); result != CUDA_SUCCESS) throw api->error(result, "cuInit", doing);
  return api;
}

}  // namespace

void *CudaApi::find(const char *name, int version) const {
  void *found = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (lookup(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS || !found)
    throw Error("DriverError", "opening the CUDA driver " + library,
                std::string("no entry point ") + name +
                    (status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT ? " of this version" : ""),
                std::string(name) + " of CUDA " + version_text(version) + " or newer", "update the NVIDIA driver");
  return found;
}

std::shared_ptr<const CudaApi> CudaApi::open() {
  static std::mutex mutex;
  static std::weak_ptr<const CudaApi> shared;
  const char *named = std::getenv("HELIOGRAPH_LIBCUDA");
  const std::string library = named && *named ? named : "libcuda.so.1";
  std::lock_guard lock(mutex);
  auto api = shared.lock();
  if (api && api->library != library)
    throw Error("DriverError", "opening the CUDA driver " + library, "devices of " + api->library + " still open",
                "one driver library at a time", "close them, or leave HELIOGRAPH_LIBCUDA as it was");
  if (!api) shared = api = load(library);
  return api;
}

Error CudaApi::error(CUresult result, const char *call, const std::string &doing) const {
  const char *name = nullptr, *sentence = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "an error code this driver has no name for";
  if (cuGetErrorString(result, &sentence) != CUDA_SUCCESS || !sentence) sentence = "no explanation";
  const Meaning *known = meaning(result);
  return Error(known ? known->type : "DriverError", doing,
               std::string(call) + ": " + name + " (" + std::to_string(result) + "): " +
                   (known ? known->meaning : sentence),
               "CUDA_SUCCESS", known ? known->hint : "look the code up in the CUDA driver's documentation");
}

bool cuda_fatal(CUresult result) {
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT ||
      result == CUDA_ERROR_DEINITIALIZED)
    return true;
  const Meaning *known = meaning(result);
  return known && std::string_view(known->type) == "DeviceFaultError";
}

}  // namespace hg
