// Somebody else in the process, who uses the same driver: graphs of every kind of node, kernels of libraries, streams.
// Tests call these; each is one call of the driver with the primary context of device 0 current. What they do is neither
// counted nor made to fail.
#include "state.h"

#define FOREIGN extern "C" __attribute__((visibility("default")))

namespace fake {
namespace {

struct InContext {
  InContext() {
    of_somebody_else() = true;
    CUcontext context = nullptr;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxPushCurrent(context);
  }
  ~InContext() {
    CUcontext context = nullptr;
    cuCtxPopCurrent(&context);
    cuDevicePrimaryCtxRelease(0);
    of_somebody_else() = false;
  }
};

template <class T>
uint64_t number(T handle) {
  return reinterpret_cast<uint64_t>(handle);
}

CUresult add(uint64_t graph, CUgraphNodeParams &params, uint64_t *out) {
  InContext here;
  CUgraphNode node = nullptr;
  const CUresult result = cuGraphAddNode(&node, handle<CUgraph>(graph), nullptr, nullptr, 0, &params);
  *out = number(node);
  return result;
}

}  // namespace

FOREIGN int foreign_graph(uint64_t *out) {
  InContext here;
  return cuGraphCreate(reinterpret_cast<CUgraph *>(out), 0);
}
FOREIGN int foreign_destroy_graph(uint64_t graph) {
  InContext here;
  return cuGraphDestroy(handle<CUgraph>(graph));
}
FOREIGN int foreign_library(const char *image, uint64_t *out) {
  InContext here;
  return cuLibraryLoadData(reinterpret_cast<CUlibrary *>(out), image, nullptr, nullptr, 0, nullptr, nullptr, 0);
}
FOREIGN int foreign_unload_library(uint64_t library) {
  InContext here;
  return cuLibraryUnload(handle<CUlibrary>(library));
}
FOREIGN int foreign_kernel(uint64_t library, const char *name, uint64_t *out) {
  InContext here;
  return cuLibraryGetKernel(reinterpret_cast<CUkernel *>(out), handle<CUlibrary>(library), name);
}
FOREIGN int foreign_function(uint64_t kernel, uint64_t *out) {
  InContext here;
  return cuKernelGetFunction(reinterpret_cast<CUfunction *>(out), handle<CUkernel>(kernel));
}
FOREIGN int foreign_kernel_attribute(uint64_t kernel, int id, int value) {
  InContext here;
  return cuKernelSetAttribute(static_cast<CUfunction_attribute>(id), value, handle<CUkernel>(kernel), 0);
}
FOREIGN int foreign_function_attribute(uint64_t function, int id, int value) {
  InContext here;
  return cuFuncSetAttribute(handle<CUfunction>(function), static_cast<CUfunction_attribute>(id), value);
}
FOREIGN int foreign_launch_node(uint64_t graph, uint64_t function, uint64_t kernel, const unsigned *grid,
                                const unsigned *block, unsigned shared, void **arguments, void *buffer, size_t size,
                                uint64_t *out) {
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  params.kernel = {handle<CUfunction>(function), grid[0], grid[1], grid[2], block[0], block[1], block[2], shared,
                   arguments, buffer ? extra : nullptr, handle<CUkernel>(kernel), nullptr};
  return add(graph, params, out);
}
FOREIGN int foreign_node_attribute(uint64_t node, int id, const void *value) {
  InContext here;
  return cuGraphKernelNodeSetAttribute(handle<CUgraphNode>(node), static_cast<CUkernelNodeAttrID>(id),
                                       static_cast<const CUkernelNodeAttrValue *>(value));
}
FOREIGN int foreign_memset_node(uint64_t graph, uint64_t to, size_t pitch, unsigned value, unsigned element,
                                size_t width, size_t height, uint64_t *out) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset = {to, pitch, value, element, width, height, handle<CUcontext>(1)};
  return add(graph, params, out);
}
// types: CUmemorytype of source and destination; x: bytes into the row; y: rows.
FOREIGN int foreign_copy_node(uint64_t graph, uint64_t to, uint64_t from, size_t width, size_t height, size_t depth,
                              int from_type, int to_type, size_t from_x, size_t from_y, uint64_t *out) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  CUDA_MEMCPY3D &copy = params.memcpy.copyParams;
  copy.srcMemoryType = static_cast<CUmemorytype>(from_type);
  copy.dstMemoryType = static_cast<CUmemorytype>(to_type);
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.srcXInBytes = from_x;
  copy.srcY = from_y;
  copy.WidthInBytes = width;
  copy.Height = height;
  copy.Depth = depth;
  params.memcpy.copyCtx = handle<CUcontext>(1);
  return add(graph, params, out);
}
FOREIGN int foreign_child_node(uint64_t graph, uint64_t child, uint64_t *out) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = handle<CUgraph>(child);
  return add(graph, params, out);
}
FOREIGN int foreign_event_node(uint64_t graph, uint64_t event, int record, uint64_t *out) {
  CUgraphNodeParams params{};
  params.type = record ? CU_GRAPH_NODE_TYPE_EVENT_RECORD : CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  (record ? params.eventRecord.event : params.eventWait.event) = handle<CUevent>(event);
  return add(graph, params, out);
}
// A node of any type, known or not, without anything in it.
FOREIGN int foreign_node(uint64_t graph, int type, uint64_t *out) {
  State &s = state();
  std::lock_guard lock(s.mutex);
  *out = new_handle();
  s.nodes[*out] = Node{graph, static_cast<CUgraphNodeType>(type)};
  s.graphs[graph].nodes.push_back(*out);
  return 0;
}
// An edge as it is, whether or not this driver would accept it.
FOREIGN int foreign_edge(uint64_t graph, uint64_t from, uint64_t to, const void *data) {
  State &s = state();
  std::lock_guard lock(s.mutex);
  s.graphs[graph].edges.push_back({from, to, *static_cast<const CUgraphEdgeData *>(data)});
  return 0;
}
FOREIGN int foreign_stream(uint64_t *out) {
  InContext here;
  return cuStreamCreate(reinterpret_cast<CUstream *>(out), 0);
}
FOREIGN int foreign_destroy_stream(uint64_t stream) {
  InContext here;
  return cuStreamDestroy(handle<CUstream>(stream));
}
FOREIGN int foreign_begin_capture(uint64_t stream, uint64_t mode) {
  InContext here;
  return cuStreamBeginCapture(handle<CUstream>(stream), static_cast<CUstreamCaptureMode>(mode));
}
FOREIGN int foreign_end_capture(uint64_t stream, uint64_t *graph) {
  InContext here;
  return cuStreamEndCapture(handle<CUstream>(stream), reinterpret_cast<CUgraph *>(graph));
}

}  // namespace fake
