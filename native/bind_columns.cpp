// check_columns, build_template and compare_template, as Python sees them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "columns.h"
#include "rebuild.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {
namespace {

using FunctionFacts = std::pair<uint64_t, std::vector<uint64_t>>;
using BufferFacts = std::tuple<uint64_t, uint64_t, bool>;
using GraphFacts = std::tuple<uint64_t, uint64_t, uint64_t>;

// Columns given as Python buffers, held while they are used.
struct HeldColumns {
  explicit HeldColumns(const nb::dict &columns) {
    for (auto [name, data] : columns) {
      held.push_back(nb::cast<Bytes>(data));
      set.add(nb::cast<std::string>(name), held.back().span());
    }
  }
  std::vector<Bytes> held;
  ColumnSet set;
};

void check(const nb::dict &columns, bool host, const std::vector<FunctionFacts> &functions,
           const std::vector<BufferFacts> &buffers, const std::vector<GraphFacts> &graphs, uint64_t chunks) {
  HeldColumns held(columns);
  CatalogueFacts facts;
  facts.host = host;
  facts.chunks = chunks;
  for (const auto &[param_bytes, pointers] : functions) facts.functions.push_back({param_bytes, pointers});
  for (const auto &[address, size, writable] : buffers) facts.buffers.push_back({address, size, writable});
  for (const auto &[nodes, edges, flags] : graphs) facts.graphs.push_back({nodes, edges, flags});
  unlocked([&] { check_columns(held.set, facts); });
}

using FunctionList = std::vector<std::shared_ptr<Function>>;

TemplateHandle build(Device &device, const nb::dict &columns, uint64_t graph, const FunctionList &functions) {
  HeldColumns held(columns);
  return TemplateHandle(unlocked([&] { return build_template(device, held.set, graph, functions); }));
}

void compare(TemplateHandle &made, const nb::dict &columns, uint64_t graph, const FunctionList &functions) {
  HeldColumns held(columns);
  auto object = made.get();
  unlocked([&] { compare_template(*object, held.set, graph, functions); });
}

}  // namespace

void register_columns(nb::module_ &m) {
  m.def("check_columns", &check, "columns"_a, "host"_a, "functions"_a, "buffers"_a, "graphs"_a, "chunks"_a,
        nb::sig("def check_columns(columns: dict[str, Buffer], host: bool, "
                "functions: Sequence[tuple[int, Sequence[int]]], buffers: Sequence[tuple[int, int, bool]], "
                "graphs: Sequence[tuple[int, int, int]], chunks: int) -> None"),
        "Checks what the columns of graphs.safetensors mean (docs/core-format.md, M70 to M85) against core.json:\n"
        "functions are (param_bytes, pointers), buffers (address, size, writable), graphs (nodes, edges, flags),\n"
        "chunks the rows of weights.chunks. FormatError names the rule that is broken.");
  m.def("build_template", &build, "device"_a, "columns"_a, "graph"_a, "functions"_a,
        nb::sig("def build_template(device: Device, columns: dict[str, Buffer], graph: int, "
                "functions: Sequence[Function]) -> Template"),
        "Rebuilds one graph of a checked catalogue, nodes and edges in stored order.");
  m.def("compare_template", &compare, "template"_a, "columns"_a, "graph"_a, "functions"_a,
        nb::sig("def compare_template(template: Template, columns: dict[str, Buffer], graph: int, "
                "functions: Sequence[Function]) -> None"),
        "Reads a template back from the driver; DriverError names the first node or edge that is not as stored.");
}

}  // namespace hg
