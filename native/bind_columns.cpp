// check_columns, as Python sees it.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "columns.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {
namespace {

using FunctionFacts = std::pair<uint64_t, std::vector<uint64_t>>;
using BufferFacts = std::tuple<uint64_t, uint64_t, bool>;
using GraphFacts = std::tuple<uint64_t, uint64_t, uint64_t>;

void check(const nb::dict &columns, bool host, const std::vector<FunctionFacts> &functions,
           const std::vector<BufferFacts> &buffers, const std::vector<GraphFacts> &graphs, uint64_t chunks) {
  std::vector<Bytes> held;
  ColumnSet set;
  for (auto [name, data] : columns) {
    held.push_back(nb::cast<Bytes>(data));
    set.add(nb::cast<std::string>(name), held.back().span());
  }
  CatalogueFacts facts;
  facts.host = host;
  facts.chunks = chunks;
  for (const auto &[param_bytes, pointers] : functions) facts.functions.push_back({param_bytes, pointers});
  for (const auto &[address, size, writable] : buffers) facts.buffers.push_back({address, size, writable});
  for (const auto &[nodes, edges, flags] : graphs) facts.graphs.push_back({nodes, edges, flags});
  unlocked([&] { check_columns(set, facts); });
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
}

}  // namespace hg
