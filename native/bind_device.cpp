// Device, as Python sees it. A device's own constructor is in host_bindings.cpp or cuda_module.cpp.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "sealed_image.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

void bind_device(nb::module_ &m) {
  nb::class_<Device>(m, "Device", nb::is_weak_referenceable())
      .def_prop_ro("kind", &Device::kind, "host or cuda")
      .def_prop_ro("arch", &Device::arch, "From the driver: x86-64-v3, sm_90.")
      .def_prop_ro("alive", &Device::alive, "False once its context is gone.")
      .def_prop_ro("granularity", &Device::granularity, "Bytes: what is mapped is a multiple of it.")
      .def_prop_ro("free_bytes", &Device::free_bytes,
                   "What may still be mapped, or held by executables; None where the device states no limit.")
      .def("reserve", [](Device &self, uint64_t address, uint64_t span) {
        return ReservationHandle(unlocked([&] { return self.reserve(address, span); }));
      }, "address"_a, "span"_a, "Exactly there, or AddressTakenError.")
      .def("load_module", [](Device &self, SealedImage &image) {
        auto held = std::static_pointer_cast<const SealedImage>(image.shared_from_this());
        return unlocked([&] { return self.load_module(held); });
      }, "image"_a)
      .def("create_stream", [](Device &self) { return StreamHandle(unlocked([&] { return self.create_stream(); })); })
      .def("create_event", &Device::create_event)
      .def("create_template", [](Device &self) { return TemplateHandle(self.create_template()); })
      .def("synchronize", &Device::synchronize, nb::call_guard<nb::gil_scoped_release>())
      .def("counters", &Device::counters, "What was created since the device was opened.")
      .def("close", &Device::close, nb::call_guard<nb::gil_scoped_release>(),
           "Waits for all work, then gives threads or the context back. Idempotent.");
}

}  // namespace hg
