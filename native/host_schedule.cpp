#include "host_schedule.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace hg {
namespace {

// A worker's share of a node comes as a half and two quarters: the large one first, so that workers of unequal speed
// end together.
constexpr std::array<uint32_t, 3> kPieces = {2, 1, 1};
constexpr uint32_t kPieceUnits = 4;

// The step of each node. Edges run from lower to higher numbers, so one pass in order is enough; an empty node takes
// no step of its own.
std::vector<uint32_t> find_steps(std::span<const ScheduledNode> nodes, std::span<const Edge> edges) {
  std::vector<Edge> sorted(edges.begin(), edges.end());
  std::sort(sorted.begin(), sorted.end(), [](const Edge &a, const Edge &b) { return a.to < b.to; });
  std::vector<uint32_t> step(nodes.size(), 0);
  for (const Edge &edge : sorted)
    step[edge.to] = std::max(step[edge.to], step[edge.from] + (nodes[edge.from].blocks ? 1 : 0));
  return step;
}

class Builder {
 public:
  Builder(std::span<const ScheduledNode> nodes, uint32_t workers) : nodes_(nodes) {
    schedule_.workers = workers;
    schedule_.nodes = uint32_t(nodes.size());
    schedule_.bounds.push_back(0);
    copy_params();
  }

  // Nodes of one step. A step of one chunk joins the chunk before it if that was a step as well.
  void add_step(std::span<const uint32_t> members) {
    auto &chunks = schedule_.chunks;
    auto &bounds = schedule_.bounds;
    const uint32_t workers = schedule_.workers;
    const uint32_t begin = uint32_t(chunks.size());
    for (uint32_t worker = 0; worker < workers; ++worker) {
      for (uint32_t node : members) cut(node, worker);
      bounds.push_back(uint32_t(chunks.size()));
    }
    const uint32_t made = uint32_t(chunks.size()) - begin;
    if (made == 0) return bounds.resize(bounds.size() - workers);
    if (made == 1 && last_was_single_) {
      chunks[begin - 1].end = chunks[begin].end;
      chunks.pop_back();
      bounds.resize(bounds.size() - workers);
    }
    last_was_single_ = made == 1;
  }

  Schedule finish() { return std::move(schedule_); }

 private:
  void copy_params() {
    constexpr size_t unit = sizeof(std::max_align_t);
    size_t units = 0;
    for (const auto &node : nodes_) places_.push_back(std::exchange(units, units + (node.params.size() + unit - 1) / unit));
    schedule_.params.resize(units);
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!nodes_[i].params.empty())
        memcpy(schedule_.params.data() + places_[i], nodes_[i].params.data(), nodes_[i].params.size());
  }

  // A worker's share of a node.
  void cut(uint32_t node, uint32_t worker) {
    const ScheduledNode &it = nodes_[node];
    if (schedule_.workers == 1) return add(node, 0, it.blocks);
    const uint64_t units = uint64_t(schedule_.workers) * kPieceUnits;
    uint64_t unit = uint64_t(worker) * kPieceUnits;
    for (uint32_t width : kPieces) {
      add(node, uint32_t(it.blocks * unit / units), uint32_t(it.blocks * (unit + width) / units));
      unit += width;
    }
  }

  void add(uint32_t node, uint32_t first, uint32_t last) {
    if (first == last) return;
    const uint32_t at = uint32_t(schedule_.operations.size());
    schedule_.operations.push_back({nodes_[node].run, schedule_.params.data() + places_[node], first, last, node});
    schedule_.chunks.push_back({at, at + 1});
  }

  std::span<const ScheduledNode> nodes_;
  Schedule schedule_;
  std::vector<size_t> places_;
  bool last_was_single_ = false;
};

}  // namespace

Schedule make_schedule(std::span<const ScheduledNode> nodes, std::span<const Edge> edges, uint32_t workers) {
  std::vector<uint32_t> step = find_steps(nodes, edges);
  std::vector<uint32_t> order(nodes.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  // One worker runs everything in construction order: each node a step, and all of them one chunk.
  if (workers > 1)
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return step[a] < step[b]; });
  Builder builder(nodes, workers);
  for (size_t begin = 0, end; begin < order.size(); begin = end) {
    for (end = begin + 1; workers > 1 && end < order.size() && step[order[end]] == step[order[begin]];) ++end;
    builder.add_step({order.data() + begin, end - begin});
  }
  return builder.finish();
}

Schedule with_kernel(const Schedule &schedule, uint32_t node, hg_kernel run) {
  Schedule out;
  out.operations = schedule.operations;
  out.chunks = schedule.chunks;
  out.bounds = schedule.bounds;
  out.workers = schedule.workers;
  out.nodes = schedule.nodes;
  for (Operation &operation : out.operations)
    if (operation.node == node) operation.run = run;
  return out;
}

}  // namespace hg
