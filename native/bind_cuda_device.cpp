// What only a CUDA device has: facts, limits, pointers, graphs and streams of somebody else's, the fidelity table.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include "bind_cuda.h"
#include "cuda_fidelity.h"
#include "cuda_pointers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {
namespace {

// CudaRelaxed between __enter__ and __exit__, in one thread.
class Relaxed {
 public:
  explicit Relaxed(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  void enter() {
    CudaCurrent current(*context_, "relaxing the capture mode of this thread");
    entered_.emplace(*context_);
  }
  void leave() { entered_.reset(); }

 private:
  std::shared_ptr<CudaContext> context_;
  std::optional<CudaRelaxed> entered_;
};

// What kernels' by-value structs do not set is what the stack held before: with this it is known.
[[gnu::noinline]] void paint_stack(uint8_t byte) {
  volatile uint8_t area[96 << 10];
  for (volatile uint8_t &each : area) each = byte;
}

const char *name_of(Aspect aspect) {
  switch (aspect) {
    case Aspect::node: return "node";
    case Aspect::attribute: return "attribute";
    case Aspect::edge: return "edge";
    case Aspect::port: return "port";
    case Aspect::flag: break;
  }
  return "flag";
}

nb::list fidelity_rows() {
  nb::list out;
  for (const FidelityRow &row : kFidelity)
    out.append(nb::make_tuple(name_of(row.aspect), row.id, row.name, row.kept, row.kept ? row.bytes : 0, row.how));
  return out;
}

void bind_what_it_knows(nb::module_ &m) {
  nb::class_<PointerInfo>(m, "PointerInfo", "What the CUDA driver knows of an address.")
      .def_prop_ro("kind", [](const PointerInfo &info) { return name_of(info.kind); }, "device, pinned or managed")
      .def_ro("base", &PointerInfo::base, "Address of the allocation.")
      .def_ro("size", &PointerInfo::size, "Bytes of the allocation.")
      .def_ro("device", &PointerInfo::device, "Ordinal of its device.");
  nb::class_<Relaxed>(m, "RelaxedCapture",
                      "A context manager: inside, this thread may make calls that would otherwise break a capture\n"
                      "under way, such as mapping memory. Leave it in the thread that entered it.")
      .def("__enter__", [](nb::object self) {
        nb::cast<Relaxed &>(self).enter();
        return self;
      }, nb::sig("def __enter__(self) -> RelaxedCapture"))
      .def("__exit__", [](Relaxed &self, const nb::args &) { self.leave(); },
           nb::sig("def __exit__(self, *args: object) -> None"));
  m.def("paint_stack", &paint_stack, "byte"_a,
        "Fills 96 KiB of this thread's stack below the caller: what is launched next has this byte wherever a struct\n"
        "that is passed by value has padding, or places that nobody sets.");
  m.def("cuda_fidelity", &fidelity_rows,
        nb::sig("def cuda_fidelity() -> list[tuple[str, int, str, bool, int, str]]"),
        "What of a CUDA graph is kept (docs/cuda-nodes.md): rows of aspect (node, attribute, edge, port, flag), id,\n"
        "name in the header, kept, bytes of a kept attribute's members, how it is kept or why it is refused.");
}

}  // namespace

void bind_cuda_device(nb::module_ &m, nb::class_<CudaDevice, Device> &device) {
  bind_what_it_knows(m);
  device
      .def_prop_ro("name", &CudaDevice::name)
      .def_prop_ro("index", &CudaDevice::index, "Its ordinal.")
      .def_prop_ro("processors", &CudaDevice::processors, "Multiprocessors.")
      .def_prop_ro("shared_optin", &CudaDevice::shared_optin, "Bytes of shared memory that a block may opt into.")
      .def_prop_ro("driver_version", &CudaDevice::driver_version, "1000 * major + 10 * minor of the CUDA version.")
      .def("limits", [](const CudaDevice &self) { return unlocked([&] { return self.limits(); }); },
           "The limits of the context that can be set, by name (core format M53): bytes, or counts. Those that this\n"
           "device lacks are left out.")
      .def("set_limit", [](CudaDevice &self, const std::string &name, uint64_t value) {
        unlocked([&] { self.set_limit(name, value); });
      }, "name"_a, "value"_a,
           "Before the first module is loaded. UsageError for a name that no limit has.")
      .def("pointer_info", [](const CudaDevice &self, uint64_t address) {
        return pointer_info(*self.context(), address);
      }, "address"_a, "None where the driver knows no allocation.")
      .def("borrow_module", [](CudaDevice &self, Function &function) {
        auto held = std::static_pointer_cast<Function>(function.shared_from_this());
        return unlocked([&] { return self.borrow_module(held); });
      }, "function"_a, "The module of a function, also of one that somebody else loaded and keeps.")
      .def("borrow_template", [](CudaDevice &self, uint64_t graph) {
        return TemplateHandle(unlocked([&] { return self.borrow_template(graph); }));
      }, "graph"_a,
           "A CUgraph that somebody else owns: whoever calls keeps it for as long as the template and its executables\n"
           "live. Nodes and edges are those of the flattened graph; instantiate() takes the graph as it is; nothing\n"
           "can be added. CaptureError for what cannot be kept (docs/cuda-nodes.md).")
      .def("borrow_stream", [](CudaDevice &self, uint64_t stream) {
        return StreamHandle(self.borrow_stream(stream));
      }, "stream"_a,
           "A CUstream that somebody else owns; it is never destroyed here. Keep it until what was captured on it\n"
           "has been borrowed: until then it holds the functions that were launched through it.")
      .def("capture_info", &CudaDevice::capture_info, "stream"_a,
           "(CUgraph, nodes so far) of a stream that is capturing, (0, 0) of one that is not.")
      .def("relaxed", [](const CudaDevice &self) { return std::make_unique<Relaxed>(self.context()); },
           nb::sig("def relaxed(self) -> RelaxedCapture"),
           "A context manager for allocations in a capture.");
}

}  // namespace hg
