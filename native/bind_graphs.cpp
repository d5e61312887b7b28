// Node, Template and Executable, as Python sees them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>

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

uint32_t add(TemplateHandle &self, Node node, const std::vector<uint32_t> &after,
             const std::vector<nb::bytes> &data = {}) {
  if (!data.empty() && data.size() != after.size())
    throw Error("UsageError", "adding a node", std::to_string(data.size()) + " records of edge data",
                "none, or one for each edge", "give one record for each node of `after`");
  std::vector<Edge> incoming;
  incoming.reserve(after.size());
  for (size_t i = 0; i < after.size(); ++i) {
    Edge &edge = incoming.emplace_back(Edge{after[i], 0, {}});
    if (data.empty()) continue;
    if (data[i].size() != edge.data.size())
      throw Error("UsageError", "adding a node", std::to_string(data[i].size()) + " bytes of edge data", "8",
                  "port of the source, port of the target, type, five zeros");
    std::memcpy(edge.data.data(), data[i].c_str(), edge.data.size());
  }
  auto object = self.get();
  return unlocked([&] { return object->add(std::move(node), incoming); });
}

using Attributes = std::vector<std::pair<uint32_t, nb::bytes>>;

std::vector<NodeAttribute> to_attributes(const Attributes &given) {
  std::vector<NodeAttribute> out;
  for (const auto &[id, value] : given) {
    NodeAttribute &attribute = out.emplace_back(NodeAttribute{id});
    if (value.size() > attribute.value.size())
      throw Error("UsageError", "adding a kernel", std::to_string(value.size()) + " bytes of an attribute",
                  "at most 64", "give the members of the value");
    std::memcpy(attribute.value.data(), value.c_str(), value.size());
  }
  return out;
}

MemsetNode to_memset(uint64_t address, uint32_t value, uint64_t size, uint32_t element, uint64_t height,
                     uint64_t pitch) {
  const bool known = element == 1 || element == 2 || element == 4;
  if (!known || size % element || (element < 4 && value >> (8 * element)))
    throw Error("UsageError", "adding a memset",
                "elements of " + std::to_string(element) + " bytes, rows of " + std::to_string(size) + ", value " +
                    std::to_string(value),
                "elements of 1, 2 or 4 bytes, rows of whole elements, a value that fits", "correct the call");
  return {address, value, size / element, element, height, height > 1 ? pitch : 0};
}

nb::bytes to_bytes(const void *data, size_t size) { return nb::bytes(static_cast<const char *>(data), size); }

// What the template says, asked without the interpreter lock.
template <class T>
T read(TemplateHandle &self, T (Template::*what)() const) {
  auto object = self.get();
  return unlocked([&] { return (*object.*what)(); });
}

nb::list edges(TemplateHandle &self) {
  nb::list out;
  for (const Edge &edge : read(self, &Template::edges))
    out.append(nb::make_tuple(edge.from, edge.to, to_bytes(edge.data.data(), edge.data.size())));
  return out;
}

nb::list attributes(const Node &node) {
  nb::list out;
  for (const NodeAttribute &attribute : node.kernel.attributes)
    out.append(nb::make_tuple(attribute.id, to_bytes(attribute.value.data(), attribute.value.size())));
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
      .def_prop_ro("form", [](const Node &n) { return int(n.kernel.form); },
                   "How the parameters reached the driver: 0 an array of pointers, 1 one buffer.")
      .def_prop_ro("attrs", &attributes, nb::sig("def attrs(self) -> list[tuple[int, bytes]]"),
                   "Attributes of a kernel node that differ from a plain node's: the driver's id, and 64 bytes: the\n"
                   "members of the value, then zeros (core format M86). Ascending by id; empty on the host.")
      .def_prop_ro("address", [](const Node &n) { return n.kind == NodeKind::memcpy ? n.memcpy.to : n.memset.address; },
                   "Destination of a memset or a memcpy.")
      .def_prop_ro("source", [](const Node &n) { return n.memcpy.from; })
      .def_prop_ro("value", [](const Node &n) { return n.memset.value; }, "Of a memset: one element of it.")
      .def_prop_ro("element", [](const Node &n) { return n.kind == NodeKind::memset ? n.memset.element : 0; },
                   "Of a memset: bytes of the value, 1, 2 or 4.")
      .def_prop_ro("width", [](const Node &n) { return n.memset.width; }, "Of a memset: elements of a row.")
      .def_prop_ro("height", [](const Node &n) { return n.kind == NodeKind::memset ? n.memset.height : 0; },
                   "Of a memset: rows.")
      .def_prop_ro("pitch", [](const Node &n) { return n.memset.pitch; },
                   "Of a memset: bytes from row to row; 0 for one row.")
      .def_prop_ro("size", [](const Node &n) {
        if (n.kind == NodeKind::memcpy) return n.memcpy.bytes;
        return n.kind == NodeKind::memset ? n.memset.bytes() : 0;
      }, "Bytes of a memcpy; of a memset from its first byte to one past its last.");
}

void bind_template(nb::module_ &m) {
  nb::class_<TemplateHandle>(m, "Template", nb::is_weak_referenceable(),
                             "A graph as the driver holds it: nodes and edges in construction order.")
      .def_prop_ro("device", [](TemplateHandle &self) { return self.get()->device(); })
      .def_prop_ro("node_count", [](TemplateHandle &self) { return read(self, &Template::node_count); })
      .def_prop_ro("edge_count", [](TemplateHandle &self) { return read(self, &Template::edge_count); })
      .def("add_kernel", [](TemplateHandle &self, Function &function, const Triple &grid, const Bytes &params,
                            const std::vector<uint32_t> &after, const Triple &block, uint32_t shared_bytes, int form,
                            const Attributes &attrs, const std::vector<nb::bytes> &data) {
        Node node{NodeKind::kernel, to_kernel(function, grid, params, block, shared_bytes)};
        if (form != 0 && form != 1)
          throw Error("UsageError", "adding a kernel", "form " + std::to_string(form), "0 or 1", "correct the form");
        node.kernel.form = ParamForm(form);
        node.kernel.attributes = to_attributes(attrs);
        return add(self, std::move(node), after, data);
      }, "function"_a, "grid"_a, "params"_a, "after"_a = nb::tuple(), nb::kw_only(), "block"_a = nb::make_tuple(1, 1, 1),
         "shared_bytes"_a = 0, "form"_a = 0, "attrs"_a = nb::tuple(), "data"_a = nb::tuple(),
         nb::sig("def add_kernel(self, function: Function, grid: tuple[int, int, int], params: Buffer, "
                 "after: Sequence[int] = (), *, block: tuple[int, int, int] = (1, 1, 1), shared_bytes: int = 0, "
                 "form: int = 0, attrs: Sequence[tuple[int, bytes]] = (), data: Sequence[bytes] = ()) -> int"),
         "form and attrs are those of Node; data has the eight bytes of each edge from `after`. CUDA only, all three.")
      .def("add_memset", [](TemplateHandle &self, uint64_t address, uint32_t value, uint64_t size,
                            const std::vector<uint32_t> &after, uint32_t element, uint64_t height, uint64_t pitch) {
        return add(self, {NodeKind::memset, {}, to_memset(address, value, size, element, height, pitch), {}}, after);
      }, "address"_a, "value"_a, "size"_a, "after"_a = nb::tuple(), nb::kw_only(), "element"_a = 1, "height"_a = 1,
         "pitch"_a = 0,
         "size: bytes of a row; element: of the value, 1, 2 or 4; pitch: from row to row. On the host one row.")
      .def("add_memcpy", [](TemplateHandle &self, uint64_t to, uint64_t source, uint64_t size,
                            const std::vector<uint32_t> &after) {
        return add(self, {NodeKind::memcpy, {}, {}, {to, source, size}}, after);
      }, "to"_a, "source"_a, "size"_a, "after"_a = nb::tuple())
      .def("add_empty", [](TemplateHandle &self, const std::vector<uint32_t> &after) {
        return add(self, Node{}, after);
      }, "after"_a = nb::tuple())
      .def("nodes", [](TemplateHandle &self) { return read(self, &Template::nodes); })
      .def("edges", &edges, nb::sig("def edges(self) -> list[tuple[int, int, bytes]]"),
           "(from, to, data) sorted by (to, from).")
      .def_prop_ro("top_level", [](TemplateHandle &self) { return read(self, &Template::top_level); },
                   "For each node the number of the node of the graph itself that it is or is inside of: its own\n"
                   "number, unless a borrowed graph has graphs inside, which are read flattened.")
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
      .def_prop_ro("flags", [](ExecutableHandle &self) { return self.get()->flags(); },
                   "Read back from the driver, but for USE_NODE_PRIORITY (8): CUDA drivers of release 580 accept it and\n"
                   "do not report it, so it is remembered as instantiate() passed it to the driver.")
      .def_prop_ro("in_flight", [](ExecutableHandle &self) {
        auto object = self.get();
        return unlocked([&] { return object->in_flight(); });
      }, "Launches submitted by launch() and not yet finished.")
      .def_prop_ro("device_bytes", [](ExecutableHandle &self) { return self.get()->device_bytes(); })
      .def_prop_ro("host_bytes", [](ExecutableHandle &self) { return self.get()->host_bytes(); })
      .def_prop_ro("handle", [](ExecutableHandle &self) { return self.get()->handle(); },
                   "Its CUgraphExec, for native code that launches by itself (docs/lifecycle.md): valid while this is\n"
                   "open, for somebody who stops launching before it is closed or dropped. Once it was read, drain(),\n"
                   "close() and dropping wait for the whole device. UsageError for an executable of the host device.")
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
