// Graphs, their nodes and edges, executables.
#include <algorithm>
#include <cstddef>
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

// The bytes of each attribute that a kernel node has, as cuda.h lays its members out.
size_t member_bytes(int id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return offsetof(CUaccessPolicyWindow, missProp) + sizeof(int);
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: return 3 * sizeof(unsigned);
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return sizeof(CUlaunchMemSyncDomainMap);
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: return sizeof(int);
    default: return 0;
  }
}

bool knows_attribute(int id) {
  const State &s = state();
  return s.newer_attributes.count(id) || (member_bytes(id) && !s.missing_attributes.count(id));
}

using Value = std::array<uint8_t, 64>;

// What a node has to which nothing was done. Not all of it is zero.
Value default_attribute(const Node &node, int id) {
  Value value{};
  if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) value[1] = 1;
  if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
    const Function &function = state().functions[node.function];
    for (int axis = 0; axis < 3; ++axis)
      std::memcpy(value.data() + 4 * axis, &function.attributes.at(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + axis), 4);
  }
  return value;
}

Value attribute(const Node &node, int id) {
  const auto at = node.attributes.find(id);
  return at == node.attributes.end() ? default_attribute(node, id) : at->second;
}

struct Three {
  unsigned at[3];
  unsigned blocks() const { return at[0] * at[1] * at[2]; }
};

Three dimensions(const Value &value) {
  Three out{};
  std::memcpy(&out, value.data(), sizeof out);
  return out;
}

// What the driver asks of a value.
CUresult acceptable(const Node &node, int id, const Value &value) {
  const Function &function = state().functions[node.function];
  int number = 0;
  std::memcpy(&number, value.data(), sizeof number);
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: return number == 0 || number == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: {
      const Three wanted = dimensions(value);
      const Three cluster = dimensions(attribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
      const bool preferred = id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION;
      const bool consent = function.attributes.at(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
      if (!wanted.blocks() || (!consent && wanted.blocks() > 8)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
      for (int axis = 0; axis < 3; ++axis) {
        if (node.grid[axis] % wanted.at[axis]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        if (preferred && (!cluster.at[axis] || wanted.at[axis] % cluster.at[axis])) return CUDA_ERROR_INVALID_VALUE;
      }
      return CUDA_SUCCESS;
    }
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return number >= -1 && number <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return number == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // a node cannot opt out again
    default: return CUDA_SUCCESS;
  }
}

CUresult read_buffer(Node &node, const Function &function, void **extra) {
  const uint8_t *data = nullptr;
  size_t size = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) data = static_cast<const uint8_t *>(extra[1]);
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<const size_t *>(extra[1]);
  }
  size_t needed = 0;
  for (const Param &param : function.params) needed = std::max(needed, param.offset + param.size);
  if (!data || size < needed) return CUDA_ERROR_INVALID_VALUE;
  node.buffered = true;
  node.buffer.assign(data, data + size);
  for (const Param &param : function.params)
    node.arguments.emplace_back(data + param.offset, data + param.offset + param.size);
  return CUDA_SUCCESS;
}

// An executable's steps for the nodes of a graph, those of graphs inside in their places. `before`: steps that the
// first ones wait for; what comes back are those that the next ones wait for.
std::vector<size_t> expand(uintptr_t number, const std::vector<size_t> &before, std::vector<Step> &steps) {
  State &s = state();
  const Graph graph = s.graphs[number];
  std::map<uintptr_t, std::vector<size_t>> last;
  std::set<uintptr_t> inner;
  std::map<CUevent, std::vector<size_t>> recorded;
  for (uintptr_t node : sorted(graph)) {
    std::vector<size_t> after;
    bool root = true;
    for (const Edge &edge : graph.edges)
      if (edge.to == node) {
        after.insert(after.end(), last[edge.from].begin(), last[edge.from].end());
        inner.insert(edge.from);
        root = false;
      }
    if (root) after = before;
    const Node &it = s.nodes[node];
    if (it.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      last[node] = expand(it.child, after, steps);
      continue;
    }
    if (it.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
      after.insert(after.end(), recorded[it.event].begin(), recorded[it.event].end());
    last[node] = {steps.size()};
    if (it.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) recorded[it.event] = {steps.size()};
    steps.push_back({it, after});
  }
  std::vector<size_t> ends;
  for (uintptr_t node : graph.nodes)
    if (!inner.count(node)) ends.insert(ends.end(), last[node].begin(), last[node].end());
  return graph.nodes.empty() ? before : ends;
}

uintptr_t clone(uintptr_t number) {
  State &s = state();
  const uintptr_t copy = new_handle();
  const Graph from = s.graphs[number];
  Graph to;
  std::map<uintptr_t, uintptr_t> twin;
  for (uintptr_t node : from.nodes) {
    Node made = s.nodes[node];
    made.graph = copy;
    if (made.child) made.child = clone(made.child);
    to.nodes.push_back(twin[node] = new_handle());
    s.nodes[twin[node]] = std::move(made);
  }
  for (const Edge &edge : from.edges) to.edges.push_back({twin[edge.from], twin[edge.to], edge.data});
  s.graphs[copy] = std::move(to);
  return copy;
}

bool is_kernel(uintptr_t node) { return state().nodes[node].type == CU_GRAPH_NODE_TYPE_KERNEL; }

CUresult check_edge(uintptr_t from, uintptr_t to, const CUgraphEdgeData &data) {
  if (data.to_port || data.from_port > CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER) return CUDA_ERROR_INVALID_VALUE;
  if (data.type > CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned char byte : data.reserved)
    if (byte) return CUDA_ERROR_INVALID_VALUE;
  if (data.from_port && !is_kernel(from)) return CUDA_ERROR_INVALID_VALUE;
  if (data.type && (!data.from_port || !is_kernel(from) || !is_kernel(to))) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult fill_kernel(Node &node, CUfunction handle, void **arguments, void **extra) {
  handle = as_function(handle);
  Function *function = find(state().functions, handle, "function");
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  // The driver would load it when it is first launched, once all else that runs has ended.
  if (!function->loaded && !of_somebody_else()) misuse("a kernel was used that was not loaded");
  function->loaded = true;
  node.function = reinterpret_cast<uintptr_t>(handle);
  // The function's own limit counts, whatever its kernel says.
  if (int(node.shared) > function->attributes.at(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
    return CUDA_ERROR_INVALID_VALUE;
  if (function->threads && node.block[0] * node.block[1] * node.block[2] != function->threads)
    return CUDA_ERROR_INVALID_VALUE;
  if (extra) return arguments ? CUDA_ERROR_INVALID_VALUE : read_buffer(node, *function, extra);
  if (!arguments && !function->params.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < function->params.size(); ++i) {
    const auto *bytes = static_cast<const uint8_t *>(arguments[i]);
    node.arguments.emplace_back(bytes, bytes + function->params[i].size);
  }
  return CUDA_SUCCESS;
}

void destroy_nodes(const Graph &graph) {
  State &s = state();
  for (uintptr_t node : graph.nodes) {
    if (const uintptr_t child = s.nodes[node].child) {
      destroy_nodes(s.graphs[child]);
      s.graphs.erase(child);
    }
    s.nodes.erase(node);
  }
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
  for (const auto &[number, node] : s.nodes)
    if (node.child == reinterpret_cast<uintptr_t>(handle)) return CUDA_ERROR_INVALID_VALUE;  // it belongs to its node
  destroy_nodes(*graph);
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
    const CUgraphEdgeData record = data ? data[s.edge_fault ? 0 : i] : CUgraphEdgeData{};
    if (CUresult refused = check_edge(a, b, record); refused != CUDA_SUCCESS) return refused;
    graph->edges.push_back({a, b, record});
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
      CUfunction function = k.func;
      if (!function) {  // only then the kernel counts
        if (!find(s.kernels, k.kern, "kernel")) return CUDA_ERROR_INVALID_HANDLE;
        node.kernel = reinterpret_cast<uintptr_t>(k.kern);
        function = as_function(handle<CUfunction>(node.kernel));
      }
      if (CUresult refused = fill_kernel(node, function, k.kernelParams, k.extra); refused != CUDA_SUCCESS)
        return refused;
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2 &m = params->memset;
      if (m.elementSize != 1 && m.elementSize != 2 && m.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
      if (!m.ctx || !m.height || !m.width) return CUDA_ERROR_INVALID_VALUE;
      node.memset = {m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (!params->memcpy.copyCtx || !params->memcpy.copyParams.Height || !params->memcpy.copyParams.Depth ||
          !params->memcpy.copyParams.WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
      node.copy = params->memcpy.copyParams;
      break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      if (!find(s.graphs, params->graph.graph, "graph")) return CUDA_ERROR_INVALID_HANDLE;
      node.child = clone(reinterpret_cast<uintptr_t>(params->graph.graph));
      break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      node.event = params->eventRecord.event;
      break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      node.event = params->eventWait.event;
      break;
    case CU_GRAPH_NODE_TYPE_HOST:
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
  if (node->child) {
    destroy_nodes(s.graphs[node->child]);
    s.graphs.erase(node->child);
  }
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
  out->func = node->kernel ? nullptr : handle<CUfunction>(node->function);
  out->kern = handle<CUkernel>(node->kernel);
  out->gridDimX = node->grid[0], out->gridDimY = node->grid[1], out->gridDimZ = node->grid[2];
  out->blockDimX = node->block[0], out->blockDimY = node->block[1], out->blockDimZ = node->block[2];
  out->sharedMemBytes = node->shared;
  if (!node->buffered) {
    out->kernelParams = node->argument_pointers.data();
    return CUDA_SUCCESS;
  }
  node->buffer_size = node->buffer.size();
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, node->buffer.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &node->buffer_size,
                   CU_LAUNCH_PARAM_END};
  std::copy(extra, extra + 5, node->extra);
  out->extra = node->extra;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id, CUkernelNodeAttrValue *out) {
  FAKE_CONTEXT_CALL(cuGraphKernelNodeGetAttribute);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  if (!knows_attribute(id)) return CUDA_ERROR_INVALID_VALUE;
  const Value value = attribute(*node, id);
  const size_t members = s.newer_attributes.count(id) ? value.size() : member_bytes(id);
  if (s.padding) std::memset(out, s.padding++, sizeof *out);  // never the same twice
  std::memcpy(out, value.data(), members);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                         const CUkernelNodeAttrValue *given) {
  FAKE_CONTEXT_CALL(cuGraphKernelNodeSetAttribute);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_HANDLE;
  if (!knows_attribute(id)) return CUDA_ERROR_INVALID_VALUE;
  Value value{};
  std::memcpy(value.data(), given, s.newer_attributes.count(id) ? value.size() : member_bytes(id));
  if (CUresult refused = acceptable(*node, id, value); refused != CUDA_SUCCESS) return refused;
  node->attributes[id] = value;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphChildGraphNodeGetGraph(CUgraphNode handle_, CUgraph *out) {
  FAKE_CONTEXT_CALL(cuGraphChildGraphNodeGetGraph);
  Node *node = find(s.nodes, handle_, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_HANDLE;
  *out = handle<CUgraph>(node->child);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent *out) {
  FAKE_CONTEXT_CALL(cuGraphEventRecordNodeGetEvent);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_EVENT_RECORD) return CUDA_ERROR_INVALID_HANDLE;
  *out = node->event;
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent *out) {
  FAKE_CONTEXT_CALL(cuGraphEventWaitNodeGetEvent);
  Node *node = find(s.nodes, handle, "node");
  if (!node || node->type != CU_GRAPH_NODE_TYPE_WAIT_EVENT) return CUDA_ERROR_INVALID_HANDLE;
  *out = node->event;
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
  note("instantiate with flags " + std::to_string(flags));
  if (flags & ~uint64_t{kAcceptedFlags}) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<uintptr_t> order = sorted(*graph);
  if (order.size() != graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
  Executable executable{context, static_cast<unsigned>(flags), 0, {}};
  expand(reinterpret_cast<uintptr_t>(handle_), {}, executable.steps);
  for (const Step &step : executable.steps) {
    if (step.node.type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    const Function &function = s.functions[step.node.function];
    const Three cluster = dimensions(attribute(step.node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION));
    if (cluster.blocks() > 16) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (function.attributes.at(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) && !cluster.blocks())
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  executable.bytes = (executable.steps.size() + 1) * kBytesPerNode;
  if (memory_in_use() + executable.bytes > s.memory_limit) return CUDA_ERROR_OUT_OF_MEMORY;
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
    done.push_back(enqueue(context, begin, step.node));
    last = std::max(last, done.back());
  }
  executable->ready = stream->ready = last;
  return CUDA_SUCCESS;
}

}  // namespace fake
