#include "cuda_graph.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda_driver.h"
#include "cuda_memory.h"
#include "cuda_stream.h"
#include "flags.h"

namespace hg {
namespace {

static_assert(sizeof(CUgraphEdgeData) == sizeof(Edge::data));

CUgraphEdgeData edge_data(const Edge &edge) {
  CUgraphEdgeData data{};
  std::memcpy(&data, edge.data.data(), sizeof data);
  return data;
}

// Resident memory of this process that no file backs.
uint64_t anonymous_bytes() {
  std::unique_ptr<FILE, int (*)(FILE *)> statm(std::fopen("/proc/self/statm", "re"), std::fclose);
  unsigned long long resident = 0, shared = 0;
  if (!statm || std::fscanf(statm.get(), "%*u %llu %llu", &resident, &shared) != 2) return 0;
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t growth(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

CUgraphNodeParams parameters(const Node &node, const CudaFunction *function, std::span<void *> arguments,
                             CUcontext context) {
  CUgraphNodeParams params{};
  switch (node.kind) {
    case NodeKind::kernel: {
      const KernelNode &k = node.kernel;
      params.type = CU_GRAPH_NODE_TYPE_KERNEL;
      params.kernel = {function->handle(), k.grid.x,       k.grid.y,         k.grid.z, k.block.x, k.block.y,
                       k.block.z,          k.shared_bytes, arguments.data(), nullptr,  nullptr,   nullptr};
      break;
    }
    case NodeKind::memset:
      params.type = CU_GRAPH_NODE_TYPE_MEMSET;
      params.memset.dst = node.memset.address;
      params.memset.value = node.memset.value;
      params.memset.elementSize = 1;
      params.memset.width = node.memset.bytes;
      params.memset.height = 1;
      params.memset.ctx = context;
      break;
    case NodeKind::memcpy: {
      params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
      CUDA_MEMCPY3D &copy = params.memcpy.copyParams;
      copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      copy.srcDevice = node.memcpy.from;
      copy.dstDevice = node.memcpy.to;
      copy.WidthInBytes = node.memcpy.bytes;
      copy.Height = copy.Depth = 1;
      params.memcpy.copyCtx = context;
      break;
    }
    case NodeKind::empty:
      params.type = CU_GRAPH_NODE_TYPE_EMPTY;
      break;
  }
  return params;
}

}  // namespace

CudaTemplate::CudaTemplate(std::shared_ptr<CudaDevice> device)
    : device_(std::move(device)), context_(device_->context()), graph_(context_) {
  CudaCurrent current(*context_, "creating a graph");
  context_->check(context_->api().cuGraphCreate(graph_.out(), 0), "cuGraphCreate", "creating a graph");
  ++context_->counters.templates_created;
  ++context_->counters.templates_live;
}

CudaTemplate::CudaTemplate(std::shared_ptr<CudaDevice> device, CUgraph graph,
                           std::vector<std::shared_ptr<Function>> functions)
    : device_(std::move(device)), context_(device_->context()), graph_(context_) {
  const char *doing = "reading a capture";
  *graph_.out() = graph;
  for (const auto &function : functions) {
    auto ours = cuda_function(function);
    // holds: R4 tests/device/test_cuda_graph.py::test_captured_graph_holds_its_modules
    functions_.emplace(ours->handle(), ours);
  }
  CudaCurrent current(*context_, doing);
  size_t count = 0;
  context_->check(context_->api().cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes", doing);
  nodes_.resize(count);
  context_->check(context_->api().cuGraphGetNodes(graph, nodes_.data(), &count), "cuGraphGetNodes", doing);
  ++context_->counters.templates_created;
  ++context_->counters.templates_live;
}

CudaTemplate::~CudaTemplate() { --context_->counters.templates_live; }

std::shared_ptr<Device> CudaTemplate::device() const { return device_; }

uint32_t CudaTemplate::add(Node node, std::span<const Edge> incoming) {
  CudaCurrent current(*context_, "adding a node");
  std::lock_guard lock(mutex_);
  for (const Edge &edge : incoming)
    if (edge.from >= nodes_.size())
      throw Error("UsageError", "adding a node", "an edge from node " + std::to_string(edge.from),
                  "one of the " + std::to_string(nodes_.size()) + " nodes before it", "add nodes in order");
  std::shared_ptr<CudaFunction> function;
  std::vector<void *> arguments;
  if (node.kind == NodeKind::kernel) {
    function = cuda_function(node.kernel.function);
    arguments = function->arguments(node.kernel.params);
  }
  CUgraphNodeParams params = parameters(node, function.get(), arguments, context_->handle());
  CUgraphNode added = nullptr;
  context_->check(context_->api().cuGraphAddNode(&added, graph_.get(), nullptr, nullptr, 0, &params), "cuGraphAddNode",
                  "adding a node");
  try {
    nodes_.reserve(nodes_.size() + 1);
    depend(added, incoming);
  } catch (...) {
    context_->api().cuGraphDestroyNode(added);
    throw;
  }
  // holds: R4 tests/device/test_cuda_graph.py::test_built_graph_holds_its_modules
  if (function) functions_.emplace(function->handle(), function);
  nodes_.push_back(added);
  return static_cast<uint32_t>(nodes_.size() - 1);
}

// One call for each distinct edge record: drivers 580 to 610 apply the first record of a call to all of its edges.
void CudaTemplate::depend(CUgraphNode node, std::span<const Edge> incoming) {
  std::map<std::array<uint8_t, 8>, std::vector<const Edge *>> by_record;
  for (const Edge &edge : incoming) by_record[edge.data].push_back(&edge);
  for (const auto &[record, edges] : by_record) {
    std::vector<CUgraphNode> from, to(edges.size(), node);
    std::vector<CUgraphEdgeData> data(edges.size(), edge_data(*edges.front()));
    for (const Edge *edge : edges) from.push_back(nodes_[edge->from]);
    context_->check(
        context_->api().cuGraphAddDependencies(graph_.get(), from.data(), to.data(), data.data(), edges.size()),
        "cuGraphAddDependencies", "adding the edges of a node");
  }
}

std::vector<Node> CudaTemplate::nodes() const {
  CudaCurrent current(*context_, "reading a graph");
  std::lock_guard lock(mutex_);
  std::vector<Node> nodes;
  for (CUgraphNode node : nodes_) nodes.push_back(read(node));
  return nodes;
}

Node CudaTemplate::read(CUgraphNode handle) const {
  CUgraphNodeType type{};
  context_->check(context_->api().cuGraphNodeGetType(handle, &type), "cuGraphNodeGetType", "reading a node");
  Node node;
  node.kind = static_cast<NodeKind>(type);
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      node.kernel = read_kernel(handle);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      node.memset = read_memset(handle);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      node.memcpy = read_memcpy(handle);
      break;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      break;
    default:
      throw Error("CaptureError", "reading a node", "a node of type " + std::to_string(type),
                  "a kernel, memcpy, memset or empty node", "leave this kind of work out of the capture");
  }
  return node;
}

KernelNode CudaTemplate::read_kernel(CUgraphNode handle) const {
  CUDA_KERNEL_NODE_PARAMS params{};
  context_->check(context_->api().cuGraphKernelNodeGetParams(handle, &params), "cuGraphKernelNodeGetParams",
                  "reading a kernel node");
  const auto known = functions_.find(params.func);
  if (known == functions_.end() || (known->second->param_bytes() && !params.kernelParams))
    throw Error("CaptureError", "reading a kernel node", "a kernel that was not launched through this device",
                "a function of a module loaded here", "load the module with load_module and launch it on our stream");
  return {known->second,
          {params.gridDimX, params.gridDimY, params.gridDimZ},
          {params.blockDimX, params.blockDimY, params.blockDimZ},
          params.sharedMemBytes,
          known->second->gather(params.kernelParams)};
}

MemsetNode CudaTemplate::read_memset(CUgraphNode handle) const {
  CUDA_MEMSET_NODE_PARAMS params{};
  context_->check(context_->api().cuGraphMemsetNodeGetParams(handle, &params), "cuGraphMemsetNodeGetParams",
                  "reading a memset node");
  if (params.elementSize != 1 || params.height != 1)
    throw Error("CaptureError", "reading a memset node",
                std::to_string(params.height) + " rows of " + std::to_string(params.elementSize) + "-byte elements",
                "one row of bytes", "fill the memory with a kernel");
  return {params.dst, static_cast<uint8_t>(params.value), params.width};
}

MemcpyNode CudaTemplate::read_memcpy(CUgraphNode handle) const {
  CUDA_MEMCPY3D params{};
  context_->check(context_->api().cuGraphMemcpyNodeGetParams(handle, &params), "cuGraphMemcpyNodeGetParams",
                  "reading a memcpy node");
  auto on_device = [](CUmemorytype type) { return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED; };
  if (params.Height > 1 || params.Depth > 1 || !on_device(params.srcMemoryType) || !on_device(params.dstMemoryType))
    throw Error("CaptureError", "reading a memcpy node", "a copy in rows, or from or to host memory",
                "one row between device addresses", "copy contiguous device memory");
  return {params.dstDevice, params.srcDevice, params.WidthInBytes};
}

std::vector<Edge> CudaTemplate::edges() const {
  CudaCurrent current(*context_, "reading the edges of a graph");
  std::lock_guard lock(mutex_);
  const CudaApi &api = context_->api();
  size_t count = 0;
  context_->check(api.cuGraphGetEdges(graph_.get(), nullptr, nullptr, nullptr, &count), "cuGraphGetEdges",
                  "reading the edges of a graph");
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  context_->check(api.cuGraphGetEdges(graph_.get(), from.data(), to.data(), data.data(), &count), "cuGraphGetEdges",
                  "reading the edges of a graph");
  std::map<CUgraphNode, uint32_t> number;
  for (uint32_t i = 0; i < nodes_.size(); ++i) number[nodes_[i]] = i;
  std::vector<Edge> edges(count);
  for (size_t i = 0; i < count; ++i) {
    edges[i].from = number.at(from[i]);
    edges[i].to = number.at(to[i]);
    std::memcpy(edges[i].data.data(), &data[i], sizeof data[i]);
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge &a, const Edge &b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
  return edges;
}

std::shared_ptr<Executable> CudaTemplate::instantiate(uint32_t flags) {
  check_flags(flags);
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CudaFunction>> functions;
  for (const auto &[handle, function] : functions_) functions.push_back(function);
  return std::make_shared<CudaExecutable>(context_, graph_.get(), flags, nodes_.size(), std::move(functions));
}

CudaExecutable::CudaExecutable(std::shared_ptr<CudaContext> context, CUgraph graph, uint32_t flags, uint64_t nodes,
                               std::vector<std::shared_ptr<CudaFunction>> functions)
    : context_(std::move(context)), exec_(context_), flags_(flags), nodes_(nodes) {
  functions_ = std::move(functions);  // holds: R4 tests/device/test_cuda_graph.py::test_executable_holds_its_modules
  CudaCurrent current(*context_, "instantiating a graph");
  const uint64_t free_before = cuda_free_bytes(*context_), host_before = anonymous_bytes();
  context_->check(context_->api().cuGraphInstantiateWithFlags(exec_.out(), graph, flags), "cuGraphInstantiateWithFlags",
                  "instantiating a graph");
  device_bytes_ = growth(cuda_free_bytes(*context_), free_before);
  host_bytes_ = growth(host_before, anonymous_bytes());
  ++context_->counters.executables_created;
  ++context_->counters.executables_live;
}

CudaExecutable::~CudaExecutable() {
  --context_->counters.executables_live;
  try {
    drain();  // holds: R4 tests/device/test_cuda_graph.py::test_executable_drains_before_it_is_destroyed
  } catch (const Error &) {
    if (context_->alive()) {  // its launches may still run: what they use stays for the rest of the process
      exec_.leak();
      new auto(std::move(functions_));
      return;
    }
  }
  if (CudaCurrentIfAlive current(*context_); current)
    for (CUevent event : idle_) context_->api().cuEventDestroy(event);
}

uint32_t CudaExecutable::flags() const {
  CudaCurrent current(*context_, "reading the flags of an executable");
  cuuint64_t flags = 0;
  context_->check(context_->api().cuGraphExecGetFlags(exec_.get(), &flags), "cuGraphExecGetFlags",
                  "reading the flags of an executable");
  // Driver 580.159 accepts USE_NODE_PRIORITY and does not report it: 8 reads as 0, 9 as 1 (H200, 2026-11-30).
  return static_cast<uint32_t>(flags) | (flags_ & kUseNodePriority);
}

CUevent CudaExecutable::take_event() {
  CUevent event = nullptr;
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
    return event;
  }
  context_->check(context_->api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                  "launching a graph");
  return event;
}

void CudaExecutable::launch(Stream &stream) {
  CudaStream &ours = cuda_stream(stream);
  if (ours.capturing())
    throw Error("GraphStateError", "launching a graph", "a stream that is capturing", "a stream that runs its work",
                "launch on another stream, or end the capture");
  CudaCurrent current(*context_, "launching a graph");
  std::lock_guard lock(mutex_);
  sweep();
  running_.reserve(running_.size() + 1);
  CUevent event = take_event();
  const CUresult launched = context_->api().cuGraphLaunch(exec_.get(), ours.handle());
  if (launched != CUDA_SUCCESS) idle_.push_back(event);
  context_->check(launched, "cuGraphLaunch", "launching a graph");
  ++context_->counters.launches;
  context_->counters.nodes_run += nodes_;
  running_.push_back(event);
  if (CUresult recorded = context_->api().cuEventRecord(event, ours.handle()); recorded != CUDA_SUCCESS) {
    // Nothing marks this launch: it must be over before anyone may believe that it is.
    context_->note(context_->api().cuStreamSynchronize(ours.handle()));
    context_->check(recorded, "cuEventRecord", "launching a graph");
  }
}

void CudaExecutable::sweep() const {
  if (!context_->alive()) {
    idle_.insert(idle_.end(), running_.begin(), running_.end());
    running_.clear();
  }
  std::erase_if(running_, [this](CUevent event) {
    const CUresult result = context_->api().cuEventQuery(event);
    context_->note(result);
    if (result == CUDA_SUCCESS) idle_.push_back(event);
    return result == CUDA_SUCCESS;
  });
}

uint64_t CudaExecutable::in_flight() const {
  std::lock_guard lock(mutex_);
  if (CudaCurrentIfAlive current(*context_); current) sweep();
  return context_->alive() ? running_.size() : 0;
}

void CudaExecutable::drain() {
  for (CudaCurrentIfAlive current(*context_); current;) {
    CUevent last = nullptr;
    {
      std::lock_guard lock(mutex_);
      sweep();
      if (running_.empty()) return;
      last = running_.back();
    }
    // Without the lock: other threads may launch meanwhile. Events live as long as this object.
    context_->check(context_->api().cuEventSynchronize(last), "cuEventSynchronize", "draining a graph");
  }
}

}  // namespace hg
