#include "host_capture.h"

#include <algorithm>
#include <iterator>

namespace hg {
namespace {

constexpr const char *kEnding = "ending a stream capture";

Tips merged(const Tips &a, const Tips &b) {
  Tips out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

}  // namespace

Capture::Capture(std::shared_ptr<HostTemplate> graph, const HostStream *origin)
    : graph_(std::move(graph)), origin_(origin) {
  tips_[origin] = {};
}

void Capture::add(const HostStream *stream, Node node) {
  std::lock_guard lock(mutex_);
  check_active("adding work to a stream capture");
  Tips &tips = tips_.at(stream);
  std::vector<Edge> incoming;
  for (uint32_t from : tips) incoming.push_back({from, 0, {}});
  tips = {graph_->add(std::move(node), incoming)};
}

Tips Capture::tips(const HostStream *stream) const {
  std::lock_guard lock(mutex_);
  check_active("recording an event in a stream capture");
  return tips_.at(stream);
}

void Capture::join(const HostStream *stream, const Tips &tips) {
  std::lock_guard lock(mutex_);
  check_active("joining a stream capture");
  Tips &own = tips_[stream];
  own = merged(own, tips);
}

void Capture::leave(const HostStream *stream) {
  std::lock_guard lock(mutex_);
  auto left = tips_.find(stream), origin = tips_.find(origin_);
  if (left == tips_.end()) return;
  if (stream == origin_ || origin == tips_.end()) active_ = false;  // nobody is left to end it
  else if (!reaches(origin->second, left->second)) lost_ = true;
  tips_.erase(left);
}

std::shared_ptr<HostTemplate> Capture::end(const HostStream *stream) {
  std::lock_guard lock(mutex_);
  check_active(kEnding);
  if (stream != origin_)
    throw Error("GraphStateError", kEnding, "a stream that joined the capture", "the stream that began it",
                "join its work with an event and end the capture on the other stream");
  active_ = false;
  const Tips ends = tips_.at(origin_);
  for (const auto &[other, tips] : tips_)
    if (!reaches(ends, tips)) lost_ = true;
  if (lost_)
    throw Error("GraphStateError", kEnding, "a forked stream with work that was not joined",
                "every fork joined by an event that the first stream waits for",
                "record an event on the forked stream and wait for it before the end");
  return std::move(graph_);
}

// Another thread may end the capture between a stream's look at it and its use.
void Capture::check_active(const char *doing) const {
  if (!active_)
    throw Error("GraphStateError", doing, "a capture that is over", "one that is under way",
                "end a capture after all its work was submitted");
}

bool Capture::active() const {
  std::lock_guard lock(mutex_);
  return active_;
}

// Whether every wanted node is one of `from` or an ancestor of one.
bool Capture::reaches(const Tips &from, const Tips &wanted) const {
  if (std::includes(from.begin(), from.end(), wanted.begin(), wanted.end())) return true;
  if (from.empty()) return false;
  std::vector<bool> seen(from.back() + 1);
  for (uint32_t node : from) seen[node] = true;
  std::vector<Edge> edges = graph_->edges();  // sorted by target: one pass from the end finds all ancestors
  for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge)
    if (edge->to < seen.size() && seen[edge->to]) seen[edge->from] = true;
  return std::all_of(wanted.begin(), wanted.end(), [&](uint32_t node) { return node < seen.size() && seen[node]; });
}

}  // namespace hg
