// Node, Template and Executable, as Python sees them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "flags.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

template <>
const char *Handle<Template>::noun() { return "template"; }
template <>
const char *Handle<Executable>::noun() { return "executable"; }

namespace {

uint32_t add(TemplateHandle &self, Node node, const std::vector<uint32_t> &after) {
  std::vector<Edge> incoming;
  incoming.reserve(after.size());
  for (uint32_t from : after) incoming.push_back({from, 0, {}});
  return self.get()->add(std::move(node), incoming);
}

nb::bytes to_bytes(const void *data, size_t size) { return nb::bytes(static_cast<const char *>(data), size); }

nb::list edges(TemplateHandle &self) {
  nb::list out;
  for (const Edge &edge : self.get()->edges())
    out.append(nb::make_tuple(edge.from, edge.to, to_bytes(edge.data.data(), edge.data.size())));
  return out;
}

void bind_node(nb::module_ &m) {
  nb::class_<Node>(m, "Node", "One node read back from the driver. Fields of other kinds are None or 0.")
      .def_prop_ro("kind", [](const Node &n) { return int(n.kind); })
      .def_prop_ro("function", [](const Node &n) { return n.kernel.function; },
                   nb::sig("def function(self) -> Function | None"))
      .def_prop_ro("grid", [](const Node &n) { return to_triple(n.kernel.grid); })
      .def_prop_ro("block", [](const Node &n) { return to_triple(n.kernel.block); })
      .def_prop_ro("shared_bytes", [](const Node &n) { return n.kernel.shared_bytes; })
      .def_prop_ro("params", [](const Node &n) { return to_bytes(n.kernel.params.data(), n.kernel.params.size()); })
      .def_prop_ro("address", [](const Node &n) { return n.kind == NodeKind::memcpy ? n.memcpy.to : n.memset.address; },
                   "Destination of a memset or a memcpy.")
      .def_prop_ro("source", [](const Node &n) { return n.memcpy.from; })
      .def_prop_ro("value", [](const Node &n) { return n.memset.value; })
      .def_prop_ro("size", [](const Node &n) { return n.kind == NodeKind::memcpy ? n.memcpy.bytes : n.memset.bytes; });
}

void bind_template(nb::module_ &m) {
  nb::class_<TemplateHandle>(m, "Template", nb::is_weak_referenceable(),
                             "A graph as the driver holds it: nodes and edges in construction order.")
      .def_prop_ro("device", [](TemplateHandle &self) { return self.get()->device(); })
      .def_prop_ro("node_count", [](TemplateHandle &self) { return self.get()->node_count(); })
      .def_prop_ro("edge_count", [](TemplateHandle &self) { return self.get()->edge_count(); })
      .def("add_kernel", [](TemplateHandle &self, Function &function, const Triple &grid, const Bytes &params,
                            const std::vector<uint32_t> &after) {
        return add(self, {NodeKind::kernel, to_kernel(function, grid, params)}, after);
      }, "function"_a, "grid"_a, "params"_a, "after"_a = nb::tuple())
      .def("add_memset", [](TemplateHandle &self, uint64_t address, uint8_t value, uint64_t size,
                            const std::vector<uint32_t> &after) {
        return add(self, {NodeKind::memset, {}, {address, value, size}}, after);
      }, "address"_a, "value"_a, "size"_a, "after"_a = nb::tuple())
      .def("add_memcpy", [](TemplateHandle &self, uint64_t to, uint64_t source, uint64_t size,
                            const std::vector<uint32_t> &after) {
        return add(self, {NodeKind::memcpy, {}, {}, {to, source, size}}, after);
      }, "to"_a, "source"_a, "size"_a, "after"_a = nb::tuple())
      .def("add_empty", [](TemplateHandle &self, const std::vector<uint32_t> &after) {
        return add(self, Node{}, after);
      }, "after"_a = nb::tuple())
      .def("nodes", [](TemplateHandle &self) { return self.get()->nodes(); })
      .def("edges", &edges, nb::sig("def edges(self) -> list[tuple[int, int, bytes]]"),
           "(from, to, data) sorted by (to, from).")
      .def("instantiate", [](TemplateHandle &self, uint32_t flags) {
        auto object = self.get();
        check_flags(flags);  // here, so that every device refuses the same values with the same words
        return ExecutableHandle(unlocked([&] { return object->instantiate(flags); }));
      }, "flags"_a = 0)
      .def("close", [](TemplateHandle &self) { Handle<Template>::drop(self.take()); },
           "Idempotent. Later use is GraphStateError.");
}

void close_executable(ExecutableHandle &self) {
  if (self.closed()) return;
  auto object = self.get();
  unlocked([&] { object->drain(); });
  Handle<Executable>::drop(self.take());
}

void bind_executable(nb::module_ &m) {
  nb::class_<ExecutableHandle>(m, "Executable", nb::is_weak_referenceable(),
                               "An instantiated graph. Dropping it waits for its launches.")
      .def_prop_ro("flags", [](ExecutableHandle &self) { return self.get()->flags(); }, "Read back from the driver.")
      .def_prop_ro("in_flight", [](ExecutableHandle &self) { return self.get()->in_flight(); })
      .def_prop_ro("device_bytes", [](ExecutableHandle &self) { return self.get()->device_bytes(); })
      .def_prop_ro("host_bytes", [](ExecutableHandle &self) { return self.get()->host_bytes(); })
      .def("launch", [](ExecutableHandle &self, StreamHandle &stream) {
        auto object = self.get();
        auto on = stream.get();
        unlocked([&] { object->launch(*on); });
      }, "stream"_a)
      .def("drain", [](ExecutableHandle &self) {
        auto object = self.get();
        unlocked([&] { object->drain(); });
      }, "Returns when every launch submitted before is finished.")
      .def("close", &close_executable, "Drains first. Idempotent.");
}

}  // namespace

void bind_graphs(nb::module_ &m) {
  bind_node(m);
  bind_template(m);
  bind_executable(m);
}

}  // namespace hg
