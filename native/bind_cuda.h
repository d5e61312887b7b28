// What Python holds of objects that only a CUDA device has.
#pragma once
#include "bindings.h"
#include "cuda_driver.h"
#include "cuda_memory.h"
#include "cuda_pinned.h"

namespace hg {

template <> const char *Handle<PinnedMemory>::noun();

// Closed only when no Python buffer looks at it.
class PinnedHandle : public Handle<PinnedMemory> {
 public:
  using Handle::Handle;
  int views = 0;  // with the interpreter lock only
};

void bind_cuda_device(nanobind::module_ &m, nanobind::class_<CudaDevice, Device> &device);  // what only it has
void bind_cuda_memory(nanobind::module_ &m, nanobind::class_<CudaDevice, Device> &device);  // PinnedMemory, PoolArena
void bind_cuda_images(nanobind::module_ &m);  // CudaImages

}  // namespace hg
