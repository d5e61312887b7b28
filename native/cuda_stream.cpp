#include "cuda_stream.h"

#include "cuda_driver.h"
#include "cuda_graph.h"
#include "cuda_kernels.h"

namespace hg {
namespace {

CUevent cuda_event(const std::shared_ptr<Event> &event) {
  auto ours = std::dynamic_pointer_cast<CudaEvent>(event);
  if (!ours)
    throw Error("UsageError", "using an event on a CUDA stream", "an event of another device",
                "an event of this device", "create the event on this device");
  return ours->handle();
}

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {
  CudaCurrent current(*context_, "creating an event");
  context_->check(context_->api().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                  "creating an event");
  ++context_->counters.events_live;
}

CudaEvent::~CudaEvent() {
  if (CudaCurrentIfAlive current(*context_); current) context_->api().cuEventDestroy(event_);
  --context_->counters.events_live;
}

void CudaEvent::synchronize() {
  CudaCurrent current(*context_, "waiting for an event");
  context_->check(context_->api().cuEventSynchronize(event_), "cuEventSynchronize", "waiting for an event");
}

bool CudaEvent::query() const {
  CudaCurrent current(*context_, "asking for an event");
  const CUresult result = context_->api().cuEventQuery(event_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  context_->check(result, "cuEventQuery", "asking for an event");
  return true;
}

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device) : device_(std::move(device)), context_(device_->context()) {
  CudaCurrent current(*context_, "creating a stream");
  context_->check(context_->api().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate",
                  "creating a stream");
  ++context_->counters.streams_live;
}

CudaStream::CudaStream(std::shared_ptr<CudaDevice> device, CUstream borrowed)
    : device_(std::move(device)), context_(device_->context()), stream_(borrowed), borrowed_(true) {}

CudaStream::~CudaStream() {
  std::vector<CudaContext::Functions> functions;  // which go after the nodes that use them
  for (cuuint64_t capture : joined_) functions.push_back(context_->leave_captured(capture));
  if (borrowed_) return;
  functions.push_back(context_->take_captured(begun_));
  if (CudaCurrentIfAlive current(*context_); current) context_->api().cuStreamDestroy(stream_);
  --context_->counters.streams_live;
}

void CudaStream::submit(Node node) {
  const char *doing = "submitting work to a stream";
  CudaCurrent current(*context_, doing);
  const CudaApi &api = context_->api();
  const cuuint64_t capture = capture_id();
  switch (node.kind) {
    case NodeKind::kernel:
      if (capture) join(capture);
      launch(node.kernel);
      // holds: R4 tests/device/test_cuda_graph.py::test_stream_holds_the_modules_of_its_capture
      if (capture) context_->hold_captured(capture, std::move(node.kernel.function));
      break;
    case NodeKind::memset:
      if (node.memset.element != 1 || node.memset.height != 1)
        throw Error("UsageError", doing, "a memset of wide elements or several rows", "one row of bytes",
                    "add it to a template");
      context_->check(api.cuMemsetD8Async(node.memset.address, static_cast<uint8_t>(node.memset.value),
                                          node.memset.width, stream_),
                      "cuMemsetD8Async", doing);
      break;
    case NodeKind::memcpy:
      context_->check(api.cuMemcpyAsync(node.memcpy.to, node.memcpy.from, node.memcpy.bytes, stream_),
                      "cuMemcpyAsync", doing);
      break;
    case NodeKind::empty:
      return;  // no work, and a stream capture makes no node of it
  }
  if (!capture) ++context_->counters.nodes_run;
}

void CudaStream::join(cuuint64_t capture) {
  std::lock_guard lock(mutex_);
  if (joined_.insert(capture).second) context_->join_captured(capture);
}

void CudaStream::launch(const KernelNode &kernel) {
  const auto function = cuda_function(kernel.function);
  const std::string doing = "launching " + function->name();
  if (kernel.form != ParamForm::array || !kernel.attributes.empty())
    throw Error("UsageError", doing, "node attributes or one buffer of parameters", "a plain launch",
                "add it to a template");
  function->allow(kernel);
  std::vector<uint8_t> bytes = kernel.params;
  std::vector<void *> arguments = function->arguments(bytes);
  context_->check(context_->api().cuLaunchKernel(function->handle(), kernel.grid.x, kernel.grid.y, kernel.grid.z,
                                                 kernel.block.x, kernel.block.y, kernel.block.z, kernel.shared_bytes,
                                                 stream_, arguments.data(), nullptr),
                  "cuLaunchKernel", doing.c_str());
}

void CudaStream::record(const std::shared_ptr<Event> &event) {
  CudaCurrent current(*context_, "recording an event");
  context_->check(context_->api().cuEventRecord(cuda_event(event), stream_), "cuEventRecord", "recording an event");
}

void CudaStream::wait(const std::shared_ptr<Event> &event) {
  CudaCurrent current(*context_, "making a stream wait for an event");
  context_->check(context_->api().cuStreamWaitEvent(stream_, cuda_event(event), CU_EVENT_WAIT_DEFAULT),
                  "cuStreamWaitEvent", "making a stream wait for an event");
}

void CudaStream::synchronize() {
  CudaCurrent current(*context_, "waiting for a stream");
  context_->check(context_->api().cuStreamSynchronize(stream_), "cuStreamSynchronize", "waiting for a stream");
}

bool CudaStream::query() const {
  CudaCurrent current(*context_, "asking for a stream");
  const CUresult result = context_->api().cuStreamQuery(stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  context_->check(result, "cuStreamQuery", "asking for a stream");
  return true;
}

void CudaStream::begin_capture() {
  CudaCurrent current(*context_, "beginning a stream capture");
  context_->check(context_->api().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                  "cuStreamBeginCapture", "beginning a stream capture");
  try {
    begun_ = capture_id();
    // holds: R4 tests/device/test_cuda_captures.py::test_functions_launched_on_a_joined_stream_stay_when_it_goes
    join(begun_);
  } catch (const Error &) {
    CUgraph graph = nullptr;
    if (context_->api().cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS) context_->api().cuGraphDestroy(graph);
    throw;
  }
}

std::shared_ptr<Template> CudaStream::end_capture() {
  CudaCurrent current(*context_, "ending a stream capture");
  const cuuint64_t capture = begun_ ? begun_.load() : capture_id();
  CUgraph graph = nullptr;
  const CUresult result = context_->api().cuStreamEndCapture(stream_, &graph);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (result != CUDA_SUCCESS &&
      context_->api().cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, nullptr, nullptr, nullptr) !=
          CUDA_SUCCESS)
    status = CU_STREAM_CAPTURE_STATUS_ACTIVE;  // nobody knows: what it may use is kept
  CudaContext::Functions functions;
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) {  // it is over, well or badly
    functions = context_->take_captured(capture);
    begun_ = 0;
    std::lock_guard lock(mutex_);
    joined_.erase(capture);
  }
  context_->check(result, "cuStreamEndCapture", "ending a stream capture");
  return std::make_shared<CudaTemplate>(device_, graph, std::move(functions));
}

bool CudaStream::capturing() const {
  CudaCurrent current(*context_, "asking whether a stream captures");
  return capture_status() != CU_STREAM_CAPTURE_STATUS_NONE;
}

cuuint64_t CudaStream::capture_id() const {
  cuuint64_t id = 0;
  return capture_status(&id) == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

CUstreamCaptureStatus CudaStream::capture_status(cuuint64_t *id) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  context_->check(context_->api().cuStreamGetCaptureInfo(stream_, &status, id, nullptr, nullptr, nullptr, nullptr),
                  "cuStreamGetCaptureInfo", "asking whether a stream captures");
  return status;
}

std::pair<CUgraph, size_t> capture_info(const CudaContext &context, CUstream stream) {
  const char *doing = "asking what a stream captures";
  CudaCurrent current(context, doing);
  const CudaApi &api = context.api();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  context.check(api.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr),
                "cuStreamGetCaptureInfo", doing);
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return {nullptr, 0};
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
    context.check(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamGetCaptureInfo", doing);
  size_t nodes = 0;
  context.check(api.cuGraphGetNodes(graph, nullptr, &nodes), "cuGraphGetNodes", doing);
  return {graph, nodes};
}

CudaStream &cuda_stream(Stream &stream) {
  auto *ours = dynamic_cast<CudaStream *>(&stream);
  if (!ours)
    throw Error("UsageError", "launching on a stream", "a stream of another device", "a stream of this device",
                "create the stream on the device of the graph");
  return *ours;
}

}  // namespace hg
