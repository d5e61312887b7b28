#include "host_graph.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "host_driver.h"
#include "host_modules.h"
#include "host_stream.h"

namespace hg {
namespace {

constexpr uint64_t kCopyBlock = 256 << 10;  // bytes: one block of a memset or memcpy

struct CopyParams {
  uint64_t to, from, bytes, value;
};

template <class F>
void for_blocks(const CopyParams &p, uint32_t first, uint32_t last, F &&f) {
  uint64_t begin = first * kCopyBlock, end = std::min(last * kCopyBlock, p.bytes);
  f(reinterpret_cast<char *>(p.to + begin), reinterpret_cast<const char *>(p.from + begin), end - begin);
}

void run_memset(const void *params, uint32_t first, uint32_t last) {
  const auto &p = *static_cast<const CopyParams *>(params);
  for_blocks(p, first, last, [&](char *to, const char *, uint64_t n) { memset(to, int(p.value), n); });
}

void run_memcpy(const void *params, uint32_t first, uint32_t last) {
  const auto &p = *static_cast<const CopyParams *>(params);
  for_blocks(p, first, last, [](char *to, const char *from, uint64_t n) { memcpy(to, from, n); });
}

LoweredNode lower_copy(hg_kernel run, const CopyParams &p) {
  auto *bytes = reinterpret_cast<const uint8_t *>(&p);
  return {run, {bytes, bytes + sizeof p}, uint32_t((p.bytes + kCopyBlock - 1) / kCopyBlock)};
}

const HostFunction &host_function(const KernelNode &kernel) {
  auto *function = dynamic_cast<const HostFunction *>(kernel.function.get());
  if (!function)
    throw Error("UsageError", "adding a kernel", "a function of another device", "a function of the host device",
                "load the module on this device");
  return *function;
}

void check_kernel(const KernelNode &kernel) {
  const HostFunction &function = host_function(kernel);
  const std::string doing = "adding kernel " + function.name();
  if (kernel.params.size() != function.param_bytes())
    throw Error("UsageError", doing, std::to_string(kernel.params.size()) + " bytes of parameters",
                std::to_string(function.param_bytes()) + " bytes", "pack the function's own parameter block");
  const Dim3 &grid = kernel.grid, &block = kernel.block;
  if (grid.x == 0 || grid.y != 1 || grid.z != 1 || block.x != 1 || block.y != 1 || block.z != 1 || kernel.shared_bytes)
    throw Error("UsageError", doing, "grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                std::to_string(grid.z), "a grid of blocks x 1 x 1 with blocks > 0, one thread a block, no shared memory",
                "a host kernel has one dimension: blocks");
  if (kernel.form != ParamForm::array || !kernel.attributes.empty())
    throw Error("UsageError", doing, "node attributes or one buffer of parameters", "neither",
                "both are of CUDA devices");
}

std::vector<Edge> checked_edges(std::span<const Edge> incoming, uint32_t to) {
  std::vector<Edge> edges(incoming.begin(), incoming.end());
  std::sort(edges.begin(), edges.end(), [](const Edge &a, const Edge &b) { return a.from < b.from; });
  for (size_t i = 0; i < edges.size(); ++i) {
    edges[i].to = to;
    const std::string doing = "adding node " + std::to_string(to);
    if (edges[i].from >= to)
      throw Error("UsageError", doing, "an edge from node " + std::to_string(edges[i].from), "an earlier node",
                  "nodes are added in construction order");
    if (i > 0 && edges[i].from == edges[i - 1].from)
      throw Error("UsageError", doing, "two edges from node " + std::to_string(edges[i].from), "one", "name it once");
    if (edges[i].data != decltype(edges[i].data){})
      throw Error("UsageError", doing, "edge data", "plain edges", "the host device has no programmatic launches");
  }
  return edges;
}

Schedule compile(const std::vector<Node> &nodes, const std::vector<Edge> &edges, uint32_t workers) {
  std::vector<LoweredNode> lowered;
  std::vector<ScheduledNode> scheduled;
  lowered.reserve(nodes.size());
  for (const Node &node : nodes) {
    const LoweredNode &it = lowered.emplace_back(lower(node));
    scheduled.push_back({it.run, it.params, it.blocks});
  }
  return make_schedule(scheduled, edges, workers);
}

}  // namespace

void check_node(const Node &node) {
  switch (node.kind) {
    case NodeKind::kernel: return check_kernel(node.kernel);
    case NodeKind::memcpy: {
      const MemcpyNode &copy = node.memcpy;
      if (copy.to < copy.from + copy.bytes && copy.from < copy.to + copy.bytes)
        throw Error("UsageError", "adding a memcpy", "source and destination that overlap", "two separate ranges",
                    "copy through a third one");
      return;
    }
    case NodeKind::memset:
      if (node.memset.element != 1 || node.memset.height != 1 || node.memset.value > 0xFF)
        throw Error("UsageError", "adding a memset", "wide elements or several rows", "one row of bytes",
                    "the host device fills bytes");
      return;
    case NodeKind::empty: return;
  }
}

LoweredNode lower(const Node &node) {
  switch (node.kind) {
    case NodeKind::kernel: return {host_function(node.kernel).run(), node.kernel.params, node.kernel.grid.x};
    case NodeKind::memset: return lower_copy(run_memset, {node.memset.address, 0, node.memset.width, node.memset.value});
    case NodeKind::memcpy: return lower_copy(run_memcpy, {node.memcpy.to, node.memcpy.from, node.memcpy.bytes, 0});
    case NodeKind::empty: break;
  }
  return {};
}

HostTemplate::HostTemplate(std::shared_ptr<HostDevice> device) : device_(std::move(device)) {
  device_->counts().templates_created.fetch_add(1);
}

uint32_t HostTemplate::add(Node node, std::span<const Edge> incoming) {
  check_node(node);
  std::lock_guard lock(mutex_);
  uint32_t number = uint32_t(nodes_.size());
  std::vector<Edge> edges = checked_edges(incoming, number);
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  nodes_.push_back(std::move(node));
  return number;
}

std::vector<Node> HostTemplate::nodes() const {
  std::lock_guard lock(mutex_);
  return nodes_;
}

std::vector<Edge> HostTemplate::edges() const {
  std::lock_guard lock(mutex_);
  return edges_;
}

size_t HostTemplate::node_count() const {
  std::lock_guard lock(mutex_);
  return nodes_.size();
}

size_t HostTemplate::edge_count() const {
  std::lock_guard lock(mutex_);
  return edges_.size();
}

std::shared_ptr<Executable> HostTemplate::instantiate(uint32_t flags) {
  device_->check_open("instantiating a graph");
  std::lock_guard lock(mutex_);
  return std::make_shared<HostExecutable>(device_, nodes_, edges_, flags);
}

std::shared_ptr<Device> HostTemplate::device() const { return device_; }

HostExecutable::HostExecutable(std::shared_ptr<HostDevice> device, const std::vector<Node> &nodes,
                               const std::vector<Edge> &edges, uint32_t flags)
    : device_(std::move(device)), schedule_(compile(nodes, edges, device_->workers())), flags_(flags) {
  std::set<std::shared_ptr<Function>> functions;
  for (const Node &node : nodes)
    if (node.kernel.function) functions.insert(node.kernel.function);
  // holds: R4 tests/conformance/test_lifetimes.py::test_what_a_module_gave_keeps_it_loaded
  functions_.assign(functions.begin(), functions.end());
  device_->budget().take("instantiating a graph", device_bytes());  // last: nothing after it can fail
  device_->counts().executables_created.fetch_add(1);
  device_->counts().executables_live.fetch_add(1);
  device_->counts().executable_bytes.fetch_add(device_bytes());
}

HostExecutable::~HostExecutable() {
  // holds: R4 tests/conformance/test_lifetimes.py::test_an_executable_is_not_freed_under_its_launches
  if (!device_->forked()) flights_->drain();
  device_->budget().give(device_bytes());
  device_->counts().executables_live.fetch_sub(1);
  device_->counts().executable_bytes.fetch_sub(device_bytes());
}

uint64_t HostExecutable::host_bytes() const {
  return sizeof *this + sizeof *flights_ + functions_.capacity() * sizeof functions_[0];
}

void HostExecutable::launch(Stream &stream) {
  device_->check_open("launching an executable");
  HostStream &on = device_->own_stream(stream, "launching an executable");
  if (on.capturing())
    throw Error("GraphStateError", "launching an executable", "a stream that is capturing", "a stream that is not",
                "end the capture first: a graph inside a graph is not kept");
  uint64_t number = device_->next_launch();
  std::shared_ptr<const Schedule> faulty = device_->injected(schedule_, number);
  on.push([&]() -> Task {
    uint64_t ticket = flights_->submit();
    auto run = [this, faulty, number, ticket, &pool = device_->pool(), &counts = device_->counts()](Worker &lead) {
      flights_->await_turn(ticket);
      pool.run(lead, faulty ? *faulty : schedule_, number);
      counts.nodes_run.fetch_add(schedule_.nodes);
    };
    return {run, [flights = flights_] { flights->finish(); }};  // `this` may be gone once it is called
  });
}

uint64_t HostExecutable::in_flight() const { return flights_->in_flight(); }

void HostExecutable::drain() {
  device_->check_process("draining an executable");
  flights_->drain();
}

}  // namespace hg
