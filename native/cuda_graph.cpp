#include "cuda_graph.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda_driver.h"
#include "cuda_memory.h"
#include "cuda_nodes.h"
#include "cuda_stream.h"
#include "flags.h"
#include "text.h"

namespace hg {
namespace {

// Resident memory of this process that no file backs.
uint64_t anonymous_bytes() {
  std::unique_ptr<FILE, int (*)(FILE *)> statm(std::fopen("/proc/self/statm", "re"), std::fclose);
  unsigned long long resident = 0, shared = 0;
  if (!statm || std::fscanf(statm.get(), "%*u %llu %llu", &resident, &shared) != 2) return 0;
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t growth(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

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
  *graph_.out() = graph;
  for (const auto &function : functions) {
    auto ours = cuda_function(function);
    // holds: R4 tests/device/test_cuda_graph.py::test_captured_graph_holds_its_modules
    functions_.emplace(ours->handle(), ours);
  }
  CudaCurrent current(*context_, "reading a capture");
  nodes_ = read_node_handles(*context_, graph);
  ++context_->counters.templates_created;
  ++context_->counters.templates_live;
}

CudaTemplate::~CudaTemplate() { --context_->counters.templates_live; }

std::shared_ptr<Device> CudaTemplate::device() const { return device_; }

CudaTemplate::CudaTemplate(Borrowed, std::shared_ptr<CudaDevice> device, CUgraph graph)
    : device_(std::move(device)), context_(device_->context()), graph_(context_) {
  CudaCurrent current(*context_, "reading a graph of somebody else's");
  graph_.borrow(graph);
  flat_ = flatten(context_, graph);
  // Functions are looked up now, while whoever launched them still keeps them.
  for (const FlatNode &node : flat_->nodes)
    if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) read(node.top, node.handle, node.type);
  ++context_->counters.templates_created;
  ++context_->counters.templates_live;
}

std::shared_ptr<CudaTemplate> CudaTemplate::borrow(std::shared_ptr<CudaDevice> device, CUgraph graph) {
  return std::shared_ptr<CudaTemplate>(new CudaTemplate(Borrowed{}, std::move(device), graph));
}

uint32_t CudaTemplate::add(Node node, std::span<const Edge> incoming) {
  if (flat_)
    throw Error("UsageError", "adding a node", "a graph that somebody else owns", "a template of our own",
                "build a new template from its nodes and edges");
  CudaCurrent current(*context_, "adding a node");
  std::lock_guard lock(mutex_);
  for (const Edge &edge : incoming)
    if (edge.from >= nodes_.size())
      throw Error("UsageError", "adding a node", "an edge from node " + std::to_string(edge.from),
                  "one of the " + std::to_string(nodes_.size()) + " nodes before it", "add nodes in order");
  const CUgraphNode added = add_node(*context_, graph_.get(), node);
  try {
    nodes_.reserve(nodes_.size() + 1);
    depend(added, incoming);
    if (node.kind == NodeKind::kernel) {
      const auto function = cuda_function(node.kernel.function);
      // holds: R4 tests/device/test_cuda_graph.py::test_built_graph_holds_its_modules
      functions_.emplace(function->handle(), function);
    }
  } catch (...) {
    context_->api().cuGraphDestroyNode(added);
    throw;
  }
  nodes_.push_back(added);
  return static_cast<uint32_t>(nodes_.size() - 1);
}

// One call for each distinct edge record: drivers 580 to 610 apply the first record of a call to all of its edges.
void CudaTemplate::depend(CUgraphNode node, std::span<const Edge> incoming) {
  std::map<std::array<uint8_t, 8>, std::vector<CUgraphNode>> by_record;
  for (const Edge &edge : incoming) by_record[edge.data].push_back(nodes_[edge.from]);
  for (const auto &[record, from] : by_record) {
    CUgraphEdgeData data{};
    std::memcpy(&data, record.data(), sizeof data);
    check_edge(context_, from.front(), node, data);
    const std::vector<CUgraphNode> to(from.size(), node);
    const std::vector<CUgraphEdgeData> same(from.size(), data);
    context_->check(
        context_->api().cuGraphAddDependencies(graph_.get(), from.data(), to.data(), same.data(), from.size()),
        "cuGraphAddDependencies", "adding the edges of a node");
  }
}

std::vector<Node> CudaTemplate::nodes() const {
  CudaCurrent current(*context_, "reading a graph");
  std::lock_guard lock(mutex_);
  std::vector<Node> nodes;
  if (flat_)
    for (const FlatNode &node : flat_->nodes) nodes.push_back(read(node.top, node.handle, node.type));
  else
    for (uint32_t i = 0; i < nodes_.size(); ++i) nodes.push_back(read(i, nodes_[i], node_type(*context_, nodes_[i])));
  return nodes;
}

Node CudaTemplate::read(uint32_t top, CUgraphNode handle, CUgraphNodeType type) const {
  Node node = about_nodes({top}, [&] { return read_node(context_, handle, type); });
  if (node.kind == NodeKind::kernel) {
    const auto function = cuda_function(node.kernel.function);
    // holds: R4 tests/device/test_cuda_flatten.py::test_functions_of_ours_keep_their_module_in_a_borrowed_graph
    functions_.emplace(function->handle(), function);
  }
  return node;
}

std::vector<Edge> CudaTemplate::edges() const {
  std::lock_guard lock(mutex_);
  if (flat_) return flat_->edges;
  CudaCurrent current(*context_, "reading the edges of a graph");
  return read_edges(context_, graph_.get(), nodes_);
}

size_t CudaTemplate::node_count() const {
  std::lock_guard lock(mutex_);
  return flat_ ? flat_->nodes.size() : nodes_.size();
}

std::vector<uint32_t> CudaTemplate::top_level() const {
  if (!flat_) return Template::top_level();
  std::vector<uint32_t> out;
  for (const FlatNode &node : flat_->nodes) out.push_back(node.top);
  return out;
}

std::shared_ptr<Executable> CudaTemplate::instantiate(uint32_t flags) {
  check_flags(flags);
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CudaFunction>> functions;
  for (const auto &[handle, function] : functions_) functions.push_back(function);
  const size_t nodes = flat_ ? flat_->nodes.size() : nodes_.size();
  return std::make_shared<CudaExecutable>(context_, graph_.get(), flags, nodes, std::move(functions));
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

uint64_t CudaExecutable::handle() {
  CudaCurrent current(*context_, "reading the handle of an executable");  // nobody is to launch on a closed device
  lent_ = true;
  return reinterpret_cast<uint64_t>(exec_.get());
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
  CudaRelaxed relaxed(*context_);  // another stream of this thread may be capturing
  std::lock_guard lock(mutex_);
  sweep();
  running_.reserve(running_.size() + 1);
  CUevent event = take_event();
  const CUresult launched = context_->api().cuGraphLaunch(exec_.get(), ours.handle());
  if (launched != CUDA_SUCCESS) idle_.push_back(event);
  context_->check(launched, "cuGraphLaunch", "launching a graph");
  ++context_->counters.launches;
  context_->counters.nodes_run += nodes_;
  ++launched_;
  const CUresult recorded = context_->api().cuEventRecord(event, ours.handle());
  if (recorded == CUDA_SUCCESS) return running_.push_back({launched_, event});
  // Nothing marks this launch: it must be over before anyone may believe that it is.
  idle_.push_back(event);
  const CUresult waited = context_->api().cuStreamSynchronize(ours.handle());
  context_->note(waited);
  // holds: R4 tests/device/test_cuda_captures.py::test_launch_that_nothing_marks_stays_in_flight_until_it_is_waited_for
  if (waited != CUDA_SUCCESS) running_.push_back({launched_, nullptr});
  context_->check(recorded, "cuEventRecord", "launching a graph");
}

void CudaExecutable::sweep() const {
  const bool lost = !context_->alive();
  std::erase_if(running_, [&](const Launch &launch) {
    if (!launch.event) return lost;
    const CUresult result = lost ? CUDA_SUCCESS : context_->api().cuEventQuery(launch.event);
    context_->note(result);
    if (result == CUDA_SUCCESS) idle_.push_back(launch.event);
    return result == CUDA_SUCCESS;
  });
}

uint64_t CudaExecutable::in_flight() const {
  std::lock_guard lock(mutex_);
  if (CudaCurrentIfAlive current(*context_); current) {
    CudaRelaxed relaxed(*context_);  // a stream of this thread may be capturing
    sweep();
  }
  return context_->alive() ? running_.size() : 0;
}

void CudaExecutable::drain() {
  const char *doing = "draining a graph";
  CudaCurrentIfAlive current(*context_);
  if (!current) return;
  CudaRelaxed relaxed(*context_);  // a stream of this thread may be capturing
  // holds: R4 tests/device/test_cuda_graph.py::test_executable_whose_handle_was_read_waits_for_native_launches
  if (lent_) context_->check(context_->await_work(), "cuCtxSynchronize", doing);
  std::unique_lock lock(mutex_);
  const uint64_t until = launched_;  // others may go on launching
  for (;;) {
    sweep();
    const auto end = std::ranges::upper_bound(running_, until, {}, &Launch::number);
    if (end == running_.begin()) return;
    const CUevent last = std::prev(end)->event;
    // Without the lock: other threads may launch meanwhile. Events live as long as this object.
    lock.unlock();
    if (last)
      context_->check(context_->api().cuEventSynchronize(last), "cuEventSynchronize", doing);
    else
      context_->check(context_->api().cuCtxSynchronize(), "cuCtxSynchronize", doing);
    lock.lock();
    if (!last) std::erase_if(running_, [&](const Launch &it) { return !it.event && it.number <= until; });
  }
}

}  // namespace hg
