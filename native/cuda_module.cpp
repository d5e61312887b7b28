// The CUDA device's constructor.
#include <nanobind/stl/shared_ptr.h>

#include "bind_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

void register_cuda(nb::module_ &m) {
  nb::class_<CudaDevice, Device> device(
      m, "CudaDevice",
      "A CUDA device through the lazily opened driver library (HELIOGRAPH_LIBCUDA names another one, for tests).");
  device.def(nb::new_([](int index) { return unlocked([&] { return std::make_shared<CudaDevice>(index); }); }),
             "index"_a = 0);
  bind_cuda_device(m, device);
  bind_cuda_memory(m, device);
  bind_cuda_images(m);
}

}  // namespace hg
