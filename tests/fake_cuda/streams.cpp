// Streams, events, launches outside graphs, stream capture.
#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI

namespace fake {
namespace {

// A call on a stream that is capturing, or on an event recorded in a capture, that a capture does not survive.
CUresult refuse_in_capture(const Stream &stream) {
  State &s = state();
  const auto capture = s.captures.find(stream.capture);
  if (capture == s.captures.end()) return CUDA_SUCCESS;
  capture->second.invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

// All nodes that `tips` depend on, themselves included.
std::set<uintptr_t> ancestors(const Graph &graph, const std::set<uintptr_t> &tips) {
  std::set<uintptr_t> seen = tips;
  std::vector<uintptr_t> open(tips.begin(), tips.end());
  while (!open.empty()) {
    const uintptr_t node = open.back();
    open.pop_back();
    for (const Edge &edge : graph.edges)
      if (edge.to == node && seen.insert(edge.from).second) open.push_back(edge.from);
  }
  return seen;
}

// Ends a capture: no stream takes part any more.
void leave(cuuint64_t capture) {
  for (auto &[number, stream] : state().streams)
    if (stream.capture == capture) {
      stream.capture = 0;
      stream.tips.clear();
    }
  state().captures.erase(capture);
}

void drop_graph(uintptr_t number) {
  State &s = state();
  destroy_nodes(s.graphs[number]);
  s.graphs.erase(number);
}

}  // namespace

CUresult submit(CUstream handle, Node node) {
  State &s = state();
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!stream->capture) {
    stream->ready = enqueue(stream->context, stream->ready, node);
    return CUDA_SUCCESS;
  }
  Capture &capture = s.captures[stream->capture];
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const uintptr_t number = new_handle();
  node.graph = capture.graph;
  Graph &graph = s.graphs[capture.graph];
  graph.nodes.push_back(number);
  for (uintptr_t tip : stream->tips) graph.edges.push_back({tip, number, {}});
  s.nodes[number] = std::move(node);
  stream->tips = {number};
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuStreamCreate(CUstream *out, unsigned) {
  FAKE_CONTEXT_CALL(cuStreamCreate);
  const uintptr_t number = new_handle();
  s.streams[number] = {context};
  *out = handle<CUstream>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuStreamDestroy_v2(CUstream handle) {
  FAKE_CONTEXT_CALL(cuStreamDestroy);
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const auto capture = s.captures.find(stream->capture);
  if (capture != s.captures.end() && capture->second.origin == reinterpret_cast<uintptr_t>(handle)) {
    drop_graph(capture->second.graph);
    leave(stream->capture);
  }
  s.streams.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuStreamSynchronize(CUstream handle) {
  FAKE_CONTEXT_CALL(cuStreamSynchronize);
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;  // of any stream of this thread
  if (!handle) return wait_until(context, context->legacy);  // the default stream
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult refused = refuse_in_capture(*stream); refused != CUDA_SUCCESS) return refused;
  return wait_until(stream->context, stream->ready);
}

CUDA_ENTRY cuStreamQuery(CUstream handle) {
  FAKE_CONTEXT_CALL(cuStreamQuery);
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult refused = refuse_in_capture(*stream); refused != CUDA_SUCCESS) return refused;
  return stream->ready <= Clock::now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_ENTRY cuEventCreate(CUevent *out, unsigned) {
  FAKE_CONTEXT_CALL(cuEventCreate);
  const uintptr_t number = new_handle();
  s.events[number] = {context};
  *out = handle<CUevent>(number);
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuEventDestroy_v2(CUevent handle) {
  FAKE_CONTEXT_CALL(cuEventDestroy);
  if (!find(s.events, handle, "event")) return CUDA_ERROR_INVALID_HANDLE;
  s.events.erase(reinterpret_cast<uintptr_t>(handle));
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuEventRecord(CUevent handle, CUstream on) {
  FAKE_CONTEXT_CALL(cuEventRecord);
  Event *event = find(s.events, handle, "event");
  Stream *stream = find(s.streams, on, "stream");
  if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = stream->capture;
  event->tips = stream->tips;
  event->done = std::max(stream->ready, Clock::now());
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuEventSynchronize(CUevent handle) {
  FAKE_CONTEXT_CALL(cuEventSynchronize);
  Event *event = find(s.events, handle, "event");
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  return wait_until(event->context, event->done);
}

CUDA_ENTRY cuEventQuery(CUevent handle) {
  FAKE_CONTEXT_CALL(cuEventQuery);
  Event *event = find(s.events, handle, "event");
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
  if (CUresult unsafe = unsafe_in_capture(); unsafe != CUDA_SUCCESS) return unsafe;
  return event->done <= Clock::now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_ENTRY cuStreamWaitEvent(CUstream handle, CUevent on, unsigned) {
  FAKE_CONTEXT_CALL(cuStreamWaitEvent);
  Stream *stream = find(s.streams, handle, "stream");
  Event *event = find(s.events, on, "event");
  if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->capture && !stream->capture) {
    stream->ready = std::max(stream->ready, event->done);
    return CUDA_SUCCESS;
  }
  if (event->capture && !s.captures.count(event->capture)) return CUDA_ERROR_CAPTURED_EVENT;
  if (event->capture != stream->capture && stream->capture) {
    s.captures[stream->capture].invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  stream->capture = event->capture;
  stream->tips.insert(event->tips.begin(), event->tips.end());
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
  const cuLaunchKernel_params params{function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra};
  return observed(FAKE_OBSERVED(cuLaunchKernel), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuLaunchKernel);
    if (!gx || !gy || !gz || !bx || !by || !bz) return CUDA_ERROR_INVALID_VALUE;
    Node node{0, CU_GRAPH_NODE_TYPE_KERNEL, 0, {gx, gy, gz}, {bx, by, bz}, shared};
    if (CUresult refused = fill_kernel(node, function, arguments, extra); refused != CUDA_SUCCESS) return refused;
    return submit(stream, std::move(node));
  });
}

CUDA_ENTRY cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  const cuLaunchKernelEx_params params{config, function, arguments, extra};
  return observed(FAKE_OBSERVED(cuLaunchKernelEx), params, [=]() -> CUresult {
    FAKE_CONTEXT_CALL(cuLaunchKernelEx);
    if (config->numAttrs) return CUDA_ERROR_NOT_SUPPORTED;
    Node node{0, CU_GRAPH_NODE_TYPE_KERNEL, 0, {config->gridDimX, config->gridDimY, config->gridDimZ},
              {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes};
    if (CUresult refused = fill_kernel(node, function, arguments, extra); refused != CUDA_SUCCESS) return refused;
    return submit(config->hStream, std::move(node));
  });
}

CUDA_ENTRY cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  FAKE_CONTEXT_CALL(cuMemsetD8Async);
  Node node{0, CU_GRAPH_NODE_TYPE_MEMSET};
  node.memset = {to, 0, value, 1, size, 1};
  return submit(stream, std::move(node));
}

CUDA_ENTRY cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  FAKE_CONTEXT_CALL(cuMemcpyAsync);
  if (accessible(to, size, true) != CUDA_SUCCESS || accessible(from, size, false) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_VALUE;
  Node node{0, CU_GRAPH_NODE_TYPE_MEMCPY};
  node.copy.srcMemoryType = node.copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  node.copy.srcDevice = from;
  node.copy.dstDevice = to;
  node.copy.WidthInBytes = size;
  node.copy.Height = node.copy.Depth = 1;
  return submit(stream, std::move(node));
}

CUDA_ENTRY cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  FAKE_CONTEXT_CALL(cuStreamBeginCapture);
  Stream *stream = find(s.streams, handle, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = s.next_id++;
  const uintptr_t graph = new_handle();
  s.graphs[graph] = {};
  s.captures[stream->capture] = {stream->capture, reinterpret_cast<uintptr_t>(handle), graph,
                                 std::this_thread::get_id(), mode};
  return CUDA_SUCCESS;
}

CUDA_ENTRY cuStreamEndCapture(CUstream handle_, CUgraph *out) {
  FAKE_CONTEXT_CALL(cuStreamEndCapture);
  *out = nullptr;
  Stream *stream = find(s.streams, handle_, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const auto at = s.captures.find(stream->capture);
  if (at == s.captures.end()) return CUDA_ERROR_ILLEGAL_STATE;
  const Capture capture = at->second;
  if (capture.origin != reinterpret_cast<uintptr_t>(handle_)) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture.thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const std::set<uintptr_t> joined = ancestors(s.graphs[capture.graph], stream->tips);
  bool unjoined = false;
  for (const auto &[number, other] : s.streams)
    for (uintptr_t tip : other.tips) unjoined |= other.capture == capture.id && !joined.count(tip);
  leave(capture.id);
  if (!unjoined && !capture.invalid) {
    *out = handle<CUgraph>(capture.graph);
    return CUDA_SUCCESS;
  }
  drop_graph(capture.graph);
  return unjoined ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUDA_ENTRY cuStreamGetCaptureInfo_v3(CUstream handle_, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                     const CUgraphNode **, const CUgraphEdgeData **, size_t *) {
  FAKE_CONTEXT_CALL(cuStreamGetCaptureInfo);
  Stream *stream = find(s.streams, handle_, "stream");
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  const auto capture = s.captures.find(stream->capture);
  if (capture == s.captures.end()) return CUDA_SUCCESS;
  *status = capture->second.invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (capture->second.invalid) return CUDA_SUCCESS;  // the rest is valid of an active capture only
  if (id) *id = capture->second.id;
  if (graph) *graph = handle<CUgraph>(capture->second.graph);
  return CUDA_SUCCESS;
}

}  // namespace fake
