#include "cuda_flatten.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <set>

#include "cuda_fidelity.h"
#include "cuda_nodes.h"
#include "text.h"

namespace hg {
namespace {

static_assert(sizeof(CUgraphEdgeData) == sizeof(Edge::data));
constexpr const char *kDoing = "flattening a graph";

bool by_target(const Edge &a, const Edge &b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); }

[[noreturn]] void refuse(const std::vector<uint32_t> &nodes, const std::string &found, const std::string &required,
                         const std::string &hint) {
  Error error("CaptureError", kDoing, found, required, hint);
  tell_nodes(error, nodes);
  throw error;
}

class Flattener {
 public:
  explicit Flattener(const std::shared_ptr<CudaContext> &context) : context_(context) {}

  FlatGraph run(CUgraph graph) {
    inline_graph(graph, std::nullopt);
    join_events();
    std::sort(out_.edges.begin(), out_.edges.end(), by_target);
    const auto twin = [](const Edge &a, const Edge &b) { return a.to == b.to && a.from == b.from; };
    out_.edges.erase(std::unique(out_.edges.begin(), out_.edges.end(), twin), out_.edges.end());
    if (std::any_of(out_.edges.begin(), out_.edges.end(), [](const Edge &e) { return e.from >= e.to; })) renumber();
    return std::move(out_);
  }

 private:
  struct Ends {  // of what a node became: where edges into it lead to, and where edges out of it begin
    std::vector<uint32_t> roots, leaves;
    bool graph = false;
  };

  uint32_t push(CUgraphNode handle, CUgraphNodeType type, uint32_t top) {
    out_.nodes.push_back({handle, type, top});
    return static_cast<uint32_t>(out_.nodes.size() - 1);
  }

  // The nodes of a graph, at the end of what there is. `top`: the node of the outermost graph that it is inside of.
  Ends inline_graph(CUgraph graph, std::optional<uint32_t> top) {
    const std::vector<CUgraphNode> nodes = read_node_handles(*context_, graph);
    std::vector<Ends> became;
    for (uint32_t i = 0; i < nodes.size(); ++i)
      became.push_back(about_nodes({i}, [&] { return inline_node(nodes[i], top.value_or(i)); }));
    std::vector<bool> entered(nodes.size()), left(nodes.size());
    for (const Edge &edge : read_edges(context_, graph, nodes)) {
      const Ends &from = became[edge.from], &to = became[edge.to];
      if ((from.graph || to.graph) && edge.data != decltype(edge.data){})
        refuse({edge.from, edge.to}, "edge data on an edge to or from a graph inside the graph",
               "an ordinary edge there", "leave programmatic launches to kernels of one capture");
      for (uint32_t a : from.leaves)
        for (uint32_t b : to.roots) out_.edges.push_back({a, b, edge.data});
      left[edge.from] = entered[edge.to] = true;
    }
    Ends ends;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!entered[i]) ends.roots.insert(ends.roots.end(), became[i].roots.begin(), became[i].roots.end());
      if (!left[i]) ends.leaves.insert(ends.leaves.end(), became[i].leaves.begin(), became[i].leaves.end());
    }
    return ends;
  }

  Ends inline_node(CUgraphNode node, uint32_t top) {
    const CUgraphNodeType type = node_type(*context_, node);
    const FidelityRow *row = fidelity(Aspect::node, type);
    if (!row || !row->kept) refuse_type(type);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) return inline_child(node, top);
    const bool event = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD || type == CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    const uint32_t number = push(node, event ? CU_GRAPH_NODE_TYPE_EMPTY : type, top);
    if (event) note_event(node, type == CU_GRAPH_NODE_TYPE_EVENT_RECORD, number);
    return {{number}, {number}};
  }

  Ends inline_child(CUgraphNode node, uint32_t top) {
    CUgraph child = nullptr;
    context_->check(context_->api().cuGraphChildGraphNodeGetGraph(node, &child), "cuGraphChildGraphNodeGetGraph",
                    kDoing);
    Ends ends = inline_graph(child, top);
    if (ends.roots.empty()) {  // an empty graph still orders what is before and behind it
      const uint32_t number = push(node, CU_GRAPH_NODE_TYPE_EMPTY, top);
      ends = {{number}, {number}};
    }
    ends.graph = true;
    return ends;
  }

  struct Uses {
    std::vector<uint32_t> records, waits;
  };

  // Adds the nodes of the graph itself that record an event or wait for it, or hold those that do.
  void add_tops(const Uses &uses, std::set<uint32_t> &tops) const {
    for (uint32_t node : uses.records) tops.insert(out_.nodes[node].top);
    for (uint32_t node : uses.waits) tops.insert(out_.nodes[node].top);
  }

  void note_event(CUgraphNode node, bool record, uint32_t number) {
    CUevent event = nullptr;
    const CudaApi &api = context_->api();
    if (record)
      context_->check(api.cuGraphEventRecordNodeGetEvent(node, &event), "cuGraphEventRecordNodeGetEvent", kDoing);
    else
      context_->check(api.cuGraphEventWaitNodeGetEvent(node, &event), "cuGraphEventWaitNodeGetEvent", kDoing);
    Uses &uses = events_[event];
    (record ? uses.records : uses.waits).push_back(number);
  }

  void join_events() {
    for (const auto &[event, uses] : events_) {
      if (uses.records.size() != 1 || uses.waits.empty()) {
        std::set<uint32_t> tops;
        add_tops(uses, tops);
        refuse({tops.begin(), tops.end()},
               text("an event with ", uses.records.size(), " EVENT_RECORD (7) and ", uses.waits.size(),
                    " WAIT_EVENT (6) nodes in the graph"),
               "one node that records it, and at least one that waits for it",
               "keep both ends of an event inside the capture, and use another event for each record");
      }
      for (uint32_t wait : uses.waits) out_.edges.push_back({uses.records.front(), wait, {}});
    }
  }

  // Nodes behind what they depend on; as far as that allows, in the order in which they are.
  void renumber() {
    std::vector<uint32_t> waits(out_.nodes.size());
    std::vector<std::vector<uint32_t>> next(out_.nodes.size());
    for (const Edge &edge : out_.edges) {
      ++waits[edge.to];
      next[edge.from].push_back(edge.to);
    }
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
    for (uint32_t i = 0; i < waits.size(); ++i)
      if (!waits[i]) ready.push(i);
    std::vector<uint32_t> place(out_.nodes.size());
    std::vector<FlatNode> ordered;
    while (!ready.empty()) {
      const uint32_t node = ready.top();
      ready.pop();
      place[node] = static_cast<uint32_t>(ordered.size());
      ordered.push_back(out_.nodes[node]);
      for (uint32_t after : next[node])
        if (--waits[after] == 0) ready.push(after);
    }
    if (ordered.size() != out_.nodes.size()) {
      std::set<uint32_t> tops;
      for (const auto &[event, uses] : events_)
        if (waits[uses.records.front()]) add_tops(uses, tops);
      refuse({tops.begin(), tops.end()}, "an event that is waited for before it is recorded", "a graph without cycles",
             "record an event before the work that waits for it");
    }
    out_.nodes = std::move(ordered);
    for (Edge &edge : out_.edges) edge = {place[edge.from], place[edge.to], edge.data};
    std::sort(out_.edges.begin(), out_.edges.end(), by_target);
  }

  const std::shared_ptr<CudaContext> &context_;
  FlatGraph out_;
  std::map<CUevent, Uses> events_;
};

}  // namespace

FlatGraph flatten(const std::shared_ptr<CudaContext> &context, CUgraph graph) { return Flattener(context).run(graph); }

std::vector<CUgraphNode> read_node_handles(const CudaContext &context, CUgraph graph) {
  const char *doing = "reading the nodes of a graph";
  size_t count = 0;
  context.check(context.api().cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes", doing);
  std::vector<CUgraphNode> nodes(count);
  if (count) context.check(context.api().cuGraphGetNodes(graph, nodes.data(), &count), "cuGraphGetNodes", doing);
  return nodes;
}

std::vector<Edge> read_edges(const std::shared_ptr<CudaContext> &context, CUgraph graph,
                             const std::vector<CUgraphNode> &nodes) {
  const char *doing = "reading the edges of a graph";
  const CudaApi &api = context->api();
  size_t count = 0;
  context->check(api.cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), "cuGraphGetEdges", doing);
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count)
    context->check(api.cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), "cuGraphGetEdges", doing);
  std::map<CUgraphNode, uint32_t> number;
  for (uint32_t i = 0; i < nodes.size(); ++i) number[nodes[i]] = i;
  std::vector<Edge> edges(count);
  for (size_t i = 0; i < count; ++i) {
    edges[i].from = number.at(from[i]);
    edges[i].to = number.at(to[i]);
    about_nodes({edges[i].from, edges[i].to}, [&] { check_edge(context, from[i], to[i], data[i]); });
    std::memcpy(edges[i].data.data(), &data[i], sizeof data[i]);
  }
  std::sort(edges.begin(), edges.end(), by_target);
  return edges;
}

}  // namespace hg
