// CudaImages, as Python sees it.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bind_cuda.h"
#include "cuda_images.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

void bind_cuda_images(nb::module_ &m) {
  nb::class_<CudaImages>(m, "CudaImages", nb::is_weak_referenceable(),
                         "The kernel images that this process loads, as CUPTI hands them out, and which of them a "
                         "kernel came from.\n\n"
                         "Made before the first context of the process; at most one at a time. cupti: path of\n"
                         "libcupti. The one that is mapped already is used whatever is named; else the path, else\n"
                         "HELIOGRAPH_LIBCUPTI. CaptureError: no such library; another subscriber (Nsight, cuda-gdb,\n"
                         "compute-sanitizer, a profiler).")
      .def(nb::new_([](const std::string &cupti) {
             return unlocked([&] { return std::make_shared<CudaImages>(cupti); });
           }),
           "cupti"_a = "")
      .def_prop_ro("cupti", &CudaImages::cupti, "Path of the CUPTI library that is used.")
      .def("count", &CudaImages::count, "Images loaded so far.")
      .def("image", [](const CudaImages &self, size_t number) {
        const auto bytes = self.image(number);
        return nb::bytes(reinterpret_cast<const char *>(bytes.data()), bytes.size());
      }, "number"_a, "The image as the driver loaded it, for the exact architecture.")
      .def("library", &CudaImages::library, "number"_a,
           "File name of the library whose code loaded it (libcublasLt.so.13, triton); empty where unknown.")
      .def("number", [](const CudaImages &self, Function &function) {
        const auto ours = cuda_function(function.shared_from_this());
        return unlocked([&] { return self.number(*ours); });
      }, "function"_a,
           "Number of the image that a function is in, by its handles. CaptureError if they lead to none, or to\n"
           "several that differ: a name is no proof.")
      .def("number_of", [](const CudaImages &self, const CudaDevice &device, uint64_t kernel, uint64_t function) {
        return unlocked([&] {
          return self.number(*device.context(), reinterpret_cast<CUkernel>(kernel),
                             reinterpret_cast<CUfunction>(function));
        });
      }, "device"_a, "kernel"_a = 0, "function"_a = 0,
           "The same by the driver's handles, a CUkernel, a CUfunction or both.")
      .def("close", &CudaImages::close, nb::call_guard<nb::gil_scoped_release>(),
           "Unsubscribes; what was collected stays. Idempotent.");
}

}  // namespace hg
