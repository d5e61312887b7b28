#include "cuda_cupti.h"

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

#include "cuda_caller.h"
#include "text.h"

namespace hg {
namespace {

constexpr const char *kDoing = "watching which kernel images are loaded";

std::string choose(const std::string &named, bool &mapped) {
  std::string path = MappedFiles().find("libcupti.so");
  if (mapped = !path.empty(); mapped) return path;
  if (!named.empty()) return named;
  const char *variable = std::getenv("HELIOGRAPH_LIBCUPTI");
  if (variable && *variable) return variable;
  throw Error("CaptureError", kDoing, "no libcupti in this process, none named, and HELIOGRAPH_LIBCUPTI not set",
              "the CUPTI library that fits PyTorch's CUDA",
              "name libcupti.so.13, which PyTorch's nvidia-cuda-cupti package and the CUDA toolkit have");
}

}  // namespace

CuptiApi CuptiApi::open(const std::string &named) {
  CuptiApi api;
  bool mapped = false;
  api.path = choose(named, mapped);
  // Never closed: CUPTI hooks into the driver for as long as the process lives.
  void *handle = dlopen(api.path.c_str(), RTLD_NOW | RTLD_LOCAL | (mapped ? RTLD_NOLOAD : 0));
  if (!handle) {
    const char *why = dlerror();
    throw Error("CaptureError", kDoing, text(api.path, ": ", why ? why : "it cannot be opened"),
                "the CUPTI library that fits PyTorch's CUDA",
                mapped ? "restart: the file was replaced since this process mapped it" : "name another libcupti.so.13");
  }
  auto resolve = [&](const char *name, auto &entry) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(handle, name));
    if (!entry)
      throw Error("CaptureError", kDoing, text(api.path, " without the entry point ", name), "a CUPTI library",
                  "name libcupti.so.13 of CUDA 13");
  };
  resolve("cuptiSubscribe", api.subscribe);
  resolve("cuptiUnsubscribe", api.unsubscribe);
  resolve("cuptiEnableDomain", api.enable_domain);
  resolve("cuptiEnableCallback", api.enable_callback);
  resolve("cuptiGetResultString", api.result_string);
  return api;
}

Error CuptiApi::error(CUptiResult result, const char *call) const {
  const char *sentence = nullptr;
  if (result_string(result, &sentence) != CUPTI_SUCCESS || !sentence) sentence = "an error that CUPTI has no name for";
  const std::string found = text(call, ": ", sentence, " (", static_cast<int>(result), ")");
  // The second is what releases before 11.7 said.
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED || result == CUPTI_ERROR_MAX_LIMIT_REACHED)
    return Error("CaptureError", kDoing, found, "no other user of CUPTI: a process has one subscriber",
                 "run without Nsight Systems, Nsight Compute, cuda-gdb, compute-sanitizer (cuda-memcheck) and "
                 "torch.profiler");
  return Error("CaptureError", kDoing, found, "CUPTI_SUCCESS",
               "check that CUPTI fits the driver, and that this user may profile");
}

}  // namespace hg
