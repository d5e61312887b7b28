// The CUDA device's constructor.
#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "cuda_driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

void register_cuda(nb::module_ &m) {
  nb::class_<CudaDevice, Device>(
      m, "CudaDevice",
      "A CUDA device through the lazily opened driver library (HELIOGRAPH_LIBCUDA names another one, for tests).")
      .def(nb::new_([](int index) { return unlocked([&] { return std::make_shared<CudaDevice>(index); }); }),
           "index"_a = 0);
}

}  // namespace hg
