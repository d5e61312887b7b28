// A graph without graphs and events inside it: the nodes and edges that a core keeps of a graph of somebody else's.
//
// A node that is a graph gives way to the nodes of that graph: edges into it lead to its roots, edges out of it begin
// at its leaves. An event that is recorded and waited for inside becomes two empty nodes, joined by an edge. Numbers
// follow the order in which nodes were added, those of an inner graph at the place of its node; only where an edge
// leads backwards (which a stream capture never makes) nodes are moved behind what they depend on.
#pragma once
#include "cuda_context.h"

namespace hg {

struct FlatNode {
  CUgraphNode handle;
  CUgraphNodeType type;  // kernel, memcpy, memset or empty; whatever became an empty node says so
  uint32_t top;          // number of the node of the graph itself that this is or is inside of
};
struct FlatGraph {
  std::vector<FlatNode> nodes;
  std::vector<Edge> edges;  // sorted by (to, from)
};

// CaptureError, by number and name, for types of nodes that are not kept, edge data on an edge to or from an inner
// graph, and events of which an end is outside, that are recorded twice, or that are waited for before they are
// recorded.
FlatGraph flatten(const std::shared_ptr<CudaContext> &context, CUgraph graph);

std::vector<CUgraphNode> read_node_handles(const CudaContext &context, CUgraph graph);
// Read back from the driver, by the numbers that `nodes` gives, sorted by (to, from).
std::vector<Edge> read_edges(const std::shared_ptr<CudaContext> &context, CUgraph graph,
                             const std::vector<CUgraphNode> &nodes);

}  // namespace hg
