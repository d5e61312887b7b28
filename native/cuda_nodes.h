// Nodes of a CUDA graph: what the driver is given to add one, and what it says of one.
#pragma once
#include "cuda_kernels.h"

namespace hg {

// The error is about these nodes: what it found begins with their numbers, "node 3, node 4: ".
void tell_nodes(Error &error, const std::vector<uint32_t> &nodes);

// Does something with nodes of a graph. A CaptureError tells them; in a graph inside a graph those of the outer one come
// first in its text, and are its `nodes`. A capture adds their lines (capture/cuda/ops.py).
template <class Call>
auto about_nodes(const std::vector<uint32_t> &nodes, Call &&call) {
  try {
    return call();
  } catch (Error &error) {
    if (std::string_view(error.type) == "CaptureError") tell_nodes(error, nodes);
    throw;
  }
}

// Adds a node without edges: a kernel in its parameter form and with its attributes, a memset or a copy.
CUgraphNode add_node(const CudaContext &context, CUgraph graph, const Node &node);

CUgraphNodeType node_type(const CudaContext &context, CUgraphNode node);

// Reads a kernel, memcpy, memset or empty node back. CaptureError for what cannot be kept, by name: another type of
// node, an attribute, a copy in rows or from or to host memory.
Node read_node(const std::shared_ptr<CudaContext> &context, CUgraphNode node, CUgraphNodeType type);

// The refusal of a type of node that cannot be kept.
[[noreturn]] void refuse_type(uint32_t type);

// CaptureError, with the types or kernels of both nodes, for edge data that cannot be kept.
void check_edge(const std::shared_ptr<CudaContext> &context, CUgraphNode from, CUgraphNode to,
                const CUgraphEdgeData &data);

// The attributes of a node of this function to which nothing was done, made in a graph of its own with the launch of a
// node that exists (CudaFunction::plain keeps them).
CudaFunction::Plain plain_attributes(const CudaFunction &function, const KernelNode &like, CUgraphNode node);

}  // namespace hg
