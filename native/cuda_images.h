// The kernel images that this process loads, and which of them a kernel came from.
//
// CUPTI hands out each image when it becomes a module, inside whatever driver call needed it first. When that call
// returns in the same thread, what it was about (a module, a library, a kernel, a function) is mapped to the image.
// A kernel's image is found through its own handle, its library's or its module's: never through its name, which
// other images may have as well.
//
// Threads. Callbacks come in any thread that calls the driver. They take one short lock of ours and hold none while
// they call the driver, which calls back again. Nothing is thrown through CUPTI.
#pragma once
#include <memory>

#include "cuda_cupti.h"
#include "cuda_kernels.h"

namespace hg {

class CudaImages {
 public:
  // Subscribes: before the first context of the process. `cupti` names the library (CuptiApi::open). CaptureError when
  // somebody is subscribed already, here or a tool.
  explicit CudaImages(const std::string &cupti);
  ~CudaImages();
  CudaImages(const CudaImages &) = delete;
  CudaImages &operator=(const CudaImages &) = delete;

  size_t count() const;
  std::vector<uint8_t> image(size_t number) const;
  // File name of the library whose code loaded it ("libcublasLt.so.13", "triton"); empty where that is not known.
  std::string library(size_t number) const;
  // Of the image that the function is in. CaptureError if its handles lead to none, or to several that differ.
  size_t number(const CudaFunction &function) const;
  size_t number(const CudaContext &context, CUkernel kernel, CUfunction function) const;  // either may be null
  const std::string &cupti() const { return cupti_.path; }
  // Unsubscribes. What was collected stays. Idempotent; CaptureError if CUPTI refuses.
  void close();

 private:
  class Collector;
  CuptiApi cupti_;
  std::shared_ptr<const CudaApi> api_;
  std::shared_ptr<Collector> collector_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
};

}  // namespace hg
