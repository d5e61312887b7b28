#include "host_schedule.h"

#include <algorithm>
#include <cstring>

namespace hg {
namespace {

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
  Builder(std::span<const ScheduledNode> nodes, uint32_t workers) : nodes_(nodes), workers_(workers) {
    schedule_.nodes = uint32_t(nodes.size());
    copy_params();
  }

  // Nodes of one step. A step of one operation joins the chunk before it if that was one as well.
  void add_step(std::span<const uint32_t> members) {
    auto &chunks = schedule_.chunks;
    uint32_t begin = uint32_t(chunks.size());
    for (uint32_t node : members) cut(node);
    if (chunks.size() == begin) return;
    bool single = chunks.size() == begin + 1;
    if (single && last_was_single_) {
      chunks[begin - 1].end = chunks[begin].end;
      chunks.pop_back();
    } else {
      for (uint32_t i = begin; i < chunks.size(); ++i) chunks[i].after = begin;
    }
    last_was_single_ = single;
    for (uint32_t i = std::min<uint32_t>(begin, uint32_t(chunks.size()) - 1); i < chunks.size(); ++i)
      chunks[i].step_end = uint32_t(chunks.size());
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

  void cut(uint32_t node) {
    const ScheduledNode &it = nodes_[node];
    // Each worker's share comes as a half and two quarters: the large ones first, so that workers of unequal speed end
    // together, and no more than three, since taking one costs some 30 ns (two workers, November 2026).
    const uint64_t units = uint64_t(workers_) * 4;
    for (uint64_t unit = 0, width; unit < units; unit += width) {
      width = workers_ == 1 ? units : unit < units / 2 ? 2 : 1;
      uint32_t first = uint32_t(it.blocks * unit / units), last = uint32_t(it.blocks * (unit + width) / units);
      if (first == last) continue;
      uint32_t at = uint32_t(schedule_.operations.size());
      schedule_.operations.push_back({it.run, schedule_.params.data() + places_[node], first, last, node});
      schedule_.chunks.push_back({at, at + 1, 0, 0});
    }
  }

  std::span<const ScheduledNode> nodes_;
  uint32_t workers_;
  Schedule schedule_;
  std::vector<size_t> places_;
  bool last_was_single_ = false;
};

}  // namespace

Schedule make_schedule(std::span<const ScheduledNode> nodes, std::span<const Edge> edges, uint32_t workers) {
  std::vector<uint32_t> step = find_steps(nodes, edges);
  std::vector<uint32_t> order(nodes.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  // One worker runs everything in construction order: no step is needed, and none waits.
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
  out.nodes = schedule.nodes;
  for (Operation &operation : out.operations)
    if (operation.node == node) operation.run = run;
  return out;
}

}  // namespace hg
