// Graphs, their nodes and edges, executables.
#include <algorithm>
#include <cstring>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {
namespace {

constexpr uint64_t kBytesPerNode = 4096;  // what an executable costs of device memory
// As driver 580.159 does (H200, 2026-11-30): these are accepted, and all but the last are reported.
constexpr unsigned kReportedFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
constexpr unsigned kAcceptedFlags = kReportedFlags | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

// Nodes in an order in which each comes after what it depends on, or nothing if there is a cycle.
std::vector<uintptr_t> sorted(const Graph &graph) {
  std::map<uintptr_t, size_t> waits;
  for (uintptr_t node : graph.nodes) waits[node] = 0;
  for (const Edge &edge : graph.edges) ++waits[edge.to];
  std::vector<uintptr_t> order;
  for (uintptr_t node : graph.nodes)
    if (!waits[node]) order.push_back(node);
  for (size_t i = 0; i < order.size(); ++i)
    for (const Edge &edge : graph.edges)
      if (edge.from == order[i] && --waits[edge.to] == 0) order.push_back(edge.to);
  return order.size() == graph.nodes.size() ? order : std::vector<uintptr_t>{};
}

}  // namespace

CUresult fill_kernel(Node &node, CUfunction handle, void **arguments) {
  handle = as_function(handle);
  const Function *function = find(state().functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  node.function = reinterpret_cast<uintptr_t>(handle);
  for (size_t i = 0; i < function->params.size(); ++i) {
    const auto *bytes = static_cast<const uint8_t *>(arguments[i]);
    node.arguments.emplace_back(bytes, bytes + function->params[i].size);
  }
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphCreate(CUgraph *out, unsigned flags) {
  FAKE_CONTEXT_CALL(cuGraphCreate);
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  const uintptr_t number = new_handle();
  s.graphs[number] = {};
  *out = handle<CUgraph>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphDestroy(CUgraph handle) {
  FAKE_CONTEXT_CALL(cuGraphDestroy);
  Graph *graph = find(s.graphs, handle, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  for (uintptr_t node : graph->nodes) s.nodes.erase(node);
  s.graphs.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                     const CUgraphEdgeData *data, size_t count) {
  FAKE_CONTEXT_CALL(cuGraphAddDependencies);
  Graph *graph = find(s.graphs, handle, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; i < count; ++i) {
    const auto a = reinterpret_cast<uintptr_t>(from[i]), b = reinterpret_cast<uintptr_t>(to[i]);
    if (!s.nodes.count(a) || !s.nodes.count(b) || a == b) return CUDA_ERROR_INVALID_VALUE;
    for (const Edge &edge : graph->edges)
      if (edge.from == a && edge.to == b) return CUDA_ERROR_INVALID_VALUE;
    // Drivers 580 to 610 apply the first record to all edges of a call.
    graph->edges.push_back({a, b, data ? data[0] : CUgraphEdgeData{}});
  }
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphAddNode_v2(CUgraphNode *out, CUgraph handle_, const CUgraphNode *, const CUgraphEdgeData *,
                             size_t dependencies, CUgraphNodeParams *params) {
  FAKE_CONTEXT_CALL(cuGraphAddNode);
  Graph *graph = find(s.graphs, handle_, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (dependencies) return CUDA_ERROR_NOT_SUPPORTED;  // edges are added on their own
  Node node{reinterpret_cast<uintptr_t>(handle_), params->type};
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3 &k = params->kernel;
      if (!k.gridDimX || !k.gridDimY || !k.gridDimZ || !k.blockDimX || !k.blockDimY || !k.blockDimZ)
        return CUDA_ERROR_INVALID_VALUE;
      const unsigned grid[] = {k.gridDimX, k.gridDimY, k.gridDimZ}, block[] = {k.blockDimX, k.blockDimY, k.blockDimZ};
      std::copy(grid, grid + 3, node.grid);
      std::copy(block, block + 3, node.block);
      node.shared = k.sharedMemBytes;
      if (CUresult refused = fill_kernel(node, k.func, k.kernelParams); refused != CUDA_SUCCESS) return refused;
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2 &m = params->memset;
      if (m.elementSize != 1 && m.elementSize != 2 && m.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
      if (!m.ctx || !m.height) return CUDA_ERROR_INVALID_VALUE;
      node.memset = {m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (!params->memcpy.copyCtx || !params->memcpy.copyParams.Height || !params->memcpy.copyParams.Depth)
        return CUDA_ERROR_INVALID_VALUE;
      node.copy = params->memcpy.copyParams;
      break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  const uintptr_t number = new_handle();
  graph->nodes.push_back(number);
  s.nodes[number] = std::move(node);
  *out = handle<CUgraphNode>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphDestroyNode(CUgraphNode handle) {
  FAKE_CONTEXT_CALL(cuGraphDestroyNode);
  Node *node = find(s.nodes, handle, "node");
  if (!node) return CUDA_ERROR_INVALID_HANDLE;
  Graph &graph = s.graphs[node->graph];
  const auto number = reinterpret_cast<uintptr_t>(handle);
  std::erase(graph.nodes, number);
  std::erase_if(graph.edges, [number](const Edge &edge) { return edge.from == number || edge.to == number; });
  s.nodes.erase(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphGetNodes(CUgraph handle_, CUgraphNode *out, size_t *count) {
  FAKE_CONTEXT_CALL(cuGraphGetNodes);
  Graph *graph = find(s.graphs, handle_, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; out && i < *count && i < graph->nodes.size(); ++i) out[i] = handle<CUgraphNode>(graph->nodes[i]);
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphGetEdges_v2(CUgraph handle_, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                              size_t *count) {
  FAKE_CONTEXT_CALL(cuGraphGetEdges);
  Graph *graph = find(s.graphs, handle_, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  for (size_t i = 0; from && i < *count && i < graph->edges.size(); ++i) {
    from[i] = handle<CUgraphNode>(graph->edges[i].from);
    to[i] = handle<CUgraphNode>(graph->edges[i].to);
    data[i] = graph->edges[i].data;
  }
  *count = graph->edges.size();
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
  FAKE_CONTEXT_CALL(cuGraphNodeGetType);
  Node *node = find(s.nodes, handle, "node");
  if (!node) return CUDA_ERROR_INVALID_HANDLE;
  *type = node->type;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphKernelNodeGetParams_v2(CUgraphNode handle_, CUDA_KERNEL_NODE_PARAMS *out) {
  FAKE_CONTEXT_CALL(cuGraphKernelNodeGetParams);
  Node *node = find(s.nodes, handle_, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  node->argument_pointers.clear();
  for (auto &argument : node->arguments) node->argument_pointers.push_back(argument.data());
  *out = {};
  out->func = handle<CUfunction>(node->function);
  out->gridDimX = node->grid[0], out->gridDimY = node->grid[1], out->gridDimZ = node->grid[2];
  out->blockDimX = node->block[0], out->blockDimY = node->block[1], out->blockDimZ = node->block[2];
  out->sharedMemBytes = node->shared;
  out->kernelParams = node->argument_pointers.data();
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *out) {
  FAKE_CONTEXT_CALL(cuGraphMemsetNodeGetParams);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_HANDLE;
  *out = node->memset;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *out) {
  FAKE_CONTEXT_CALL(cuGraphMemcpyNodeGetParams);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_MEMCPY) return CUDA_ERROR_INVALID_HANDLE;
  *out = node->copy;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle_, unsigned long long flags) {
  FAKE_CONTEXT_CALL(cuGraphInstantiateWithFlags);
  Graph *graph = find(s.graphs, handle_, "graph");
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (flags & ~uint64_t{kAcceptedFlags}) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<uintptr_t> order = sorted(*graph);
  if (order.size() != graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  Executable executable{context, static_cast<unsigned>(flags), (order.size() + 1) * kBytesPerNode, {}};
  if (memory_in_use() + executable.bytes > s.memory_limit) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uintptr_t number : order) {
    Step step{s.nodes[number], {}};
    for (const Edge &edge : graph->edges)
      if (edge.to == number)
        step.after.push_back(static_cast<size_t>(std::find(order.begin(), order.end(), edge.from) - order.begin()));
    executable.steps.push_back(std::move(step));
  }
  const uintptr_t number = new_handle();
  s.executables[number] = std::move(executable);
  *out = handle<CUgraphExec>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
  FAKE_CONTEXT_CALL(cuGraphExecGetFlags);
  Executable *executable = find(s.executables, handle, "executable");
  if (!executable) return CUDA_ERROR_INVALID_HANDLE;
  *flags = s.reported_flags < 0 ? executable->flags & kReportedFlags : static_cast<unsigned>(s.reported_flags);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphExecDestroy(CUgraphExec handle) {
  FAKE_CONTEXT_CALL(cuGraphExecDestroy);
  Executable *executable = find(s.executables, handle, "executable");
  if (!executable) return CUDA_ERROR_INVALID_HANDLE;
  if (executable->ready > Clock::now()) ++s.destroyed_in_flight;  // the driver allows it; we promise not to
  s.executables.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphLaunch(CUgraphExec handle, CUstream on) {
  FAKE_CONTEXT_CALL(cuGraphLaunch);
  Executable *executable = find(s.executables, handle, "executable");
  Stream *stream = find(s.streams, on, "stream");
  if (!executable || !stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  note("launch on stream " + std::to_string(reinterpret_cast<uintptr_t>(on)));
  // Launches of one executable run one after the other.
  const Time start = std::max({executable->ready, stream->ready, Clock::now()});
  Time last = start;
  std::vector<Time> done;
  for (const Step &step : executable->steps) {
    Time begin = start;
    for (size_t before : step.after) begin = std::max(begin, done[before]);
    done.push_back(enqueue(context, begin, duration(step.node), [node = step.node] { return run(node); }));
    last = std::max(last, done.back());
  }
  executable->ready = stream->ready = last;
  return CUDA_SUCCESS;
}

}  // namespace fake
