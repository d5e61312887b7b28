// Event and Stream, as Python sees them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

template <>
const char *Handle<Stream>::noun() { return "stream"; }

KernelNode to_kernel(Function &function, const Triple &grid, const Bytes &params, const Triple &block,
                     uint32_t shared_bytes) {
  auto bytes = params.span();
  KernelNode kernel;
  kernel.function = function.shared_from_this();
  kernel.grid = to_dim(grid);
  kernel.block = to_dim(block);
  kernel.shared_bytes = shared_bytes;
  kernel.params.assign(bytes.begin(), bytes.end());
  return kernel;
}

namespace {

void submit(StreamHandle &self, Node node) {
  auto stream = self.get();
  unlocked([&] { stream->submit(std::move(node)); });
}

void bind_submissions(nb::class_<StreamHandle> &stream) {
  stream
      .def("launch", [](StreamHandle &self, Function &function, const Triple &grid, const Bytes &params,
                        const Triple &block, uint32_t shared_bytes) {
        submit(self, {NodeKind::kernel, to_kernel(function, grid, params, block, shared_bytes), {}, {}});
      }, "function"_a, "grid"_a, "params"_a, nb::kw_only(), "block"_a = nb::make_tuple(1, 1, 1), "shared_bytes"_a = 0,
         nb::sig("def launch(self, function: Function, grid: tuple[int, int, int], params: Buffer, *, "
                 "block: tuple[int, int, int] = (1, 1, 1), shared_bytes: int = 0) -> None"),
         "Submits one kernel, or adds it as a node when the stream is capturing.")
      .def("memset", [](StreamHandle &self, uint64_t address, uint8_t value, uint64_t size) {
        submit(self, {NodeKind::memset, {}, {address, value, size}, {}});
      }, "address"_a, "value"_a, "size"_a)
      .def("memcpy", [](StreamHandle &self, uint64_t to, uint64_t source, uint64_t size) {
        submit(self, {NodeKind::memcpy, {}, {}, {to, source, size}});
      }, "to"_a, "source"_a, "size"_a);
}

}  // namespace

void bind_streams(nb::module_ &m) {
  nb::class_<Event>(m, "Event", nb::is_weak_referenceable())
      .def("synchronize", &Event::synchronize, nb::call_guard<nb::gil_scoped_release>())
      .def("query", &Event::query);

  nb::class_<StreamHandle> stream(m, "Stream", nb::is_weak_referenceable(),
                                  "Work in order. Work on two streams has no order unless an event gives it one.");
  bind_submissions(stream);
  stream
      .def("record", [](StreamHandle &self, Event &event) {
        auto object = self.get();
        auto held = event.shared_from_this();
        unlocked([&] { object->record(held); });
      }, "event"_a)
      .def("wait", [](StreamHandle &self, Event &event) {
        auto object = self.get();
        auto held = event.shared_from_this();
        unlocked([&] { object->wait(held); });
      }, "event"_a, "Later work of this stream starts after the work that the event's last record follows.")
      .def("synchronize", [](StreamHandle &self) {
        auto object = self.get();
        unlocked([&] { object->synchronize(); });
      })
      .def("query", [](StreamHandle &self) { return self.get()->query(); }, "Whether all its work is done.")
      .def("begin_capture", [](StreamHandle &self) { self.get()->begin_capture(); },
           "From now on work becomes nodes of a new template.")
      .def("end_capture", [](StreamHandle &self) { return TemplateHandle(self.get()->end_capture()); })
      .def_prop_ro("capturing", [](StreamHandle &self) { return self.get()->capturing(); })
      .def("close", [](StreamHandle &self) { Handle<Stream>::drop(self.take()); },
           "Ends the stream; work that it has still runs. Idempotent.");
}

}  // namespace hg
