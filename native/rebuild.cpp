#include "rebuild.h"

#include <algorithm>

#include "text.h"

namespace hg {
namespace {

[[noreturn]] void refuse(const std::string &found, const std::string &required) {
  throw Error("FormatError", "rebuilding a graph", found, required, "load cores through verify, which checks them");
}

// A row of a column, which must be there.
template <class T>
T at(const Column<T> &column, size_t row) {
  if (row >= column.size()) refuse(text("row ", row), text("less than ", column.size(), " rows"));
  return column[row];
}

// The nodes and edges of one graph, as stored.
class StoredGraph {
 public:
  StoredGraph(const ColumnSet &columns, size_t graph, Functions functions)
      : columns_(columns), functions_(functions), kind_(columns.get<uint8_t>("node.kind")), row_(u32("node.row")),
        function_(u32("kernel.function")), grid_(u32("kernel.grid", 3)), block_(u32("kernel.block", 3)),
        shared_(u32("kernel.shared")), attrs_(u32("kernel.attrs")), attr_id_(u32("attr.id")),
        form_(columns.get<uint8_t>("kernel.form")), params_at_(u64("kernel.params")),
        params_(columns.bytes("param.bytes", 1)), attr_value_(columns.bytes("attr.value", 64)), edge_from_(u32("edge.from")), edge_to_(u32("edge.to")),
        edge_data_(columns.bytes("edge.data", 8)) {
    auto nodes = u32("graph.nodes"), edges = u32("graph.edges");
    first_node_ = at(nodes, graph);
    end_node_ = at(nodes, graph + 1);
    first_edge_ = at(edges, graph);
    end_edge_ = at(edges, graph + 1);
    if (first_node_ > end_node_ || first_edge_ > end_edge_) refuse("offsets that descend", "ascending offsets");
  }

  size_t node_count() const { return end_node_ - first_node_; }
  size_t edge_count() const { return end_edge_ - first_edge_; }

  Node node(size_t number) const {
    uint32_t row = at(row_, first_node_ + number);
    Node node;
    node.kind = NodeKind(at(kind_, first_node_ + number));
    switch (node.kind) {
      case NodeKind::kernel: node.kernel = kernel(row); break;
      case NodeKind::memset: node.memset = memset_at(row); break;
      case NodeKind::memcpy:
        node.memcpy = {at(u64("copy.to"), row), at(u64("copy.from"), row), at(u64("copy.bytes"), row)};
        break;
      case NodeKind::empty: break;
      default: refuse(text("node ", number, " of another kind"), "a kernel, copy, memset or empty node");
    }
    return node;
  }

  Edge edge(size_t number) const {
    size_t row = first_edge_ + number;
    if (edge_data_.size() / 8 <= row) refuse(text("edge ", row), "a row of edge.data");
    Edge edge{at(edge_from_, row), at(edge_to_, row), {}};
    std::copy_n(edge_data_.begin() + 8 * row, 8, edge.data.begin());
    return edge;
  }

 private:
  Column<uint32_t> u32(const char *name, size_t width = 1) const { return columns_.get<uint32_t>(name, width); }
  Column<uint64_t> u64(const char *name) const { return columns_.get<uint64_t>(name); }

  KernelNode kernel(uint32_t row) const {
    uint32_t number = at(function_, row);
    if (number >= functions_.size()) refuse(text("function ", number), text("one of ", functions_.size()));
    uint64_t begin = at(params_at_, row), end = at(params_at_, row + 1);
    if (begin > end || end > params_.size()) refuse("parameters that end outside", "a range of param.bytes");
    uint8_t form = at(form_, row);
    if (form > 1) refuse(text("kernel ", row, " of form ", form), "form 0 or 1");
    return {functions_[number], dim(grid_, row), dim(block_, row), at(shared_, row),
            {params_.begin() + begin, params_.begin() + end}, ParamForm(form), attributes(row)};
  }

  std::vector<NodeAttribute> attributes(uint32_t row) const {
    std::vector<NodeAttribute> out;
    for (uint32_t i = at(attrs_, row); i < at(attrs_, row + 1); ++i) {
      NodeAttribute &attribute = out.emplace_back(NodeAttribute{at(attr_id_, i)});
      if (attr_value_.size() / 64 <= i) refuse(text("attribute ", i), "a row of attr.value");
      std::copy_n(attr_value_.begin() + 64 * size_t(i), 64, attribute.value.begin());
    }
    return out;
  }

  static Dim3 dim(const Column<uint32_t> &column, size_t row) {
    return {at(column, 3 * row), at(column, 3 * row + 1), at(column, 3 * row + 2)};
  }

  MemsetNode memset_at(uint32_t row) const {
    return {at(u64("memset.address"), row), at(u32("memset.value"), row), at(u64("memset.width"), row),
            at(u32("memset.element"), row), at(u64("memset.height"), row), at(u64("memset.pitch"), row)};
  }

  const ColumnSet &columns_;
  const Functions functions_;
  const Column<uint8_t> kind_;
  const Column<uint32_t> row_, function_, grid_, block_, shared_, attrs_, attr_id_;
  const Column<uint8_t> form_;
  const Column<uint64_t> params_at_;
  const std::span<const uint8_t> params_, attr_value_;
  const Column<uint32_t> edge_from_, edge_to_;
  const std::span<const uint8_t> edge_data_;
  size_t first_node_, end_node_, first_edge_, end_edge_;
};

[[noreturn]] void differs(size_t graph, const std::string &found, const std::string &required) {
  throw Error("DriverError", text("reading graph ", graph, " back from the driver"), found, required + ", as captured",
              "the driver does not keep what it was given: report it with this core");
}

void compare_count(size_t graph, const char *what, size_t found, size_t required) {
  if (found != required) differs(graph, text(found, " ", what), text(required, " ", what));
}

bool same(const Dim3 &a, const Dim3 &b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

// The first thing in which two nodes differ; null if nothing does.
const char *difference(const Node &a, const Node &b) {
  if (a.kind != b.kind) return "kind";
  if (a.kind == NodeKind::kernel) {
    const KernelNode &x = a.kernel, &y = b.kernel;
    if (x.function != y.function) return "function";
    if (!same(x.grid, y.grid) || !same(x.block, y.block) || x.shared_bytes != y.shared_bytes) return "launch";
    if (x.form != y.form) return "form of parameters";
    if (x.params != y.params) return "parameters";
    return x.attributes == y.attributes ? nullptr : "attributes";
  }
  if (a.kind == NodeKind::memset) {
    const MemsetNode &x = a.memset, &y = b.memset;
    const bool same = x.address == y.address && x.value == y.value && x.width == y.width && x.element == y.element &&
                      x.height == y.height && x.pitch == y.pitch;
    return same ? nullptr : "memset";
  }
  if (a.kind == NodeKind::memcpy) {
    const MemcpyNode &x = a.memcpy, &y = b.memcpy;
    return x.to == y.to && x.from == y.from && x.bytes == y.bytes ? nullptr : "copy";
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<Template> build_template(Device &device, const ColumnSet &columns, size_t graph, Functions functions) {
  StoredGraph stored(columns, graph, functions);
  auto made = device.create_template();
  std::vector<Edge> incoming;
  size_t next = 0;  // edges are stored by target, so each node's are the next ones
  for (size_t number = 0; number < stored.node_count(); ++number) {
    incoming.clear();
    for (; next < stored.edge_count() && stored.edge(next).to == number; ++next) incoming.push_back(stored.edge(next));
    made->add(stored.node(number), incoming);
  }
  if (next != stored.edge_count()) refuse(text("edge ", next, " out of order"), "edges by target");
  return made;
}

void compare_template(const Template &made, const ColumnSet &columns, size_t graph, Functions functions) {
  StoredGraph stored(columns, graph, functions);
  auto nodes = made.nodes();
  auto edges = made.edges();
  compare_count(graph, "nodes", nodes.size(), stored.node_count());
  compare_count(graph, "edges", edges.size(), stored.edge_count());
  for (size_t i = 0; i < nodes.size(); ++i)
    if (const char *what = difference(nodes[i], stored.node(i)))
      differs(graph, text("node ", i, " with another ", what), text("that of node ", i));
  for (size_t i = 0; i < edges.size(); ++i) {
    Edge wanted = stored.edge(i);
    if (edges[i].from != wanted.from || edges[i].to != wanted.to || edges[i].data != wanted.data)
      differs(graph, text("edge ", i, " from ", edges[i].from, " to ", edges[i].to),
              text("from ", wanted.from, " to ", wanted.to));
  }
}

}  // namespace hg
