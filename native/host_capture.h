// Stream capture on the host device: what a set of streams would run, as a template under construction.
//
// Each capturing stream has tips: the nodes that its next node follows. An event recorded there remembers them; a
// stream that waits for it joins the capture with those tips (a fork), or adds them to its own (a join). At the end
// every node of a forked stream must be an ancestor of the origin's tips, else its work would be lost.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host_graph.h"

namespace hg {

class HostStream;
using Tips = std::vector<uint32_t>;  // ascending, each once

class Capture {
 public:
  Capture(std::shared_ptr<HostTemplate> graph, const HostStream *origin);
  void add(const HostStream *stream, Node node);
  Tips tips(const HostStream *stream) const;
  void join(const HostStream *stream, const Tips &tips);  // forks the stream into the capture if it is not in it
  void leave(const HostStream *stream);                   // the stream is gone: its unjoined work ends the capture
  // Ends the capture for all its streams. GraphStateError when `stream` is not the origin (the capture goes on), or
  // when work was not joined (the capture is over).
  std::shared_ptr<HostTemplate> end(const HostStream *stream);
  bool active() const;

 private:
  void check_active(const char *doing) const;  // with mutex_ held
  bool reaches(const Tips &from, const Tips &wanted) const;

  std::shared_ptr<HostTemplate> graph_;
  const HostStream *origin_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<const HostStream *, Tips> tips_;
  bool active_ = true;
  bool lost_ = false;  // a forked stream was destroyed before it was joined
};

}  // namespace hg
