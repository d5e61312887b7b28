// A native replayer: launches an executable by its handle, from a thread of its own, on a stream of its own, through
// nothing but the driver. It never waits for its work: whoever holds the lease drains it.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <thread>

namespace {

struct Replayer {
  std::thread thread;
  CUresult result = CUDA_SUCCESS;  // of the first call that failed
};

// Calls an entry point in the version whose signature cuda.h has, unless a call before it failed.
template <class... Parameters, class... Arguments>
void call(CUresult &result, decltype(&cuGetProcAddress) lookup, CUresult (*)(Parameters...), const char *name,
          int version, Arguments... arguments) {
  if (result != CUDA_SUCCESS) return;
  void *entry = nullptr;
  CUdriverProcAddressQueryResult status{};
  result = lookup(name, &entry, version, CU_GET_PROC_ADDRESS_DEFAULT, &status);
  if (result == CUDA_SUCCESS) result = reinterpret_cast<CUresult (*)(Parameters...)>(entry)(arguments...);
}
#define CALL(name, version, ...) call(result, lookup, decltype(&::name){}, #name, version, __VA_ARGS__)

CUresult replay(decltype(&cuGetProcAddress) lookup, CUgraphExec executable, uint64_t launches) {
  CUresult result = CUDA_SUCCESS;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CALL(cuDevicePrimaryCtxRetain, 7000, &context, 0);
  CALL(cuCtxPushCurrent, 4000, context);
  CALL(cuStreamCreate, 2000, &stream, CU_STREAM_NON_BLOCKING);
  for (uint64_t i = 0; i < launches; ++i) CALL(cuGraphLaunch, 10000, executable, stream);
  CALL(cuStreamDestroy, 4000, stream);  // work that it has still runs
  CALL(cuCtxPopCurrent, 4000, &context);
  CALL(cuDevicePrimaryCtxRelease, 11000, 0);
  return result;
}

}  // namespace

// `driver`: libcuda, which is open in this process already.
extern "C" Replayer *start(const char *driver, uint64_t executable, uint64_t launches) {
  void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
  const auto lookup =
      library ? reinterpret_cast<decltype(&cuGetProcAddress)>(dlsym(library, "cuGetProcAddress_v2")) : nullptr;
  if (!lookup) return nullptr;
  auto *replayer = new Replayer;
  replayer->thread = std::thread(
      [=] { replayer->result = replay(lookup, reinterpret_cast<CUgraphExec>(executable), launches); });
  return replayer;
}

// Returns when it has launched as often as it was to: 0, or the driver's code of the call that failed.
extern "C" int stop(Replayer *replayer) {
  replayer->thread.join();
  const CUresult result = replayer->result;
  delete replayer;
  return result;
}
