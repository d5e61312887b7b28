// The queue of one stream and the thread that leads its work. Tasks run in the order in which they were pushed.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "host_pool.h"

namespace hg {

struct Task {
  std::function<void(Worker &)> run;
  std::function<void()> counted{};  // called as the work counts as done: who learns of it finds the stream idle
};

class StreamQueue {
 public:
  static constexpr size_t kDepth = 1024;  // tasks that wait; one more waits in push()

  StreamQueue(Pool &pool, StatusPage &page, uint32_t number);
  ~StreamQueue();  // stop()
  StreamQueue(const StreamQueue &) = delete;

  // `make` runs with the queue locked, so what it numbers is in the order of the queue. Waits while the queue is
  // full. Throws UsageError once stopped.
  void push(const std::function<Task()> &make);
  void await_all();   // what was pushed before this call
  bool idle() const;  // nothing pushed that is not done
  void retire();      // no push after this; the thread runs the rest and ends
  bool retired() const;  // its thread has run everything and ends
  void stop();        // retires it and waits for its end. Idempotent

 private:
  void lead(uint32_t number);

  Pool &pool_;
  StatusPage &page_;
  const uint32_t slot_;
  std::atomic<uint64_t> pushed_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  uint64_t done_ = 0;
  bool stopping_ = false;
  bool ended_ = false;
  std::once_flag joined_;
  std::thread thread_;
};

// The launches of one executable, over all streams. They run one at a time, in the order of submission, as on CUDA:
// launches of one graph share its memory. Held by the executable and by each launch that is queued.
class Flights {
 public:
  uint64_t submit();                // a ticket
  void await_turn(uint64_t ticket);  // all earlier launches are finished
  void finish();
  uint64_t in_flight() const;
  void drain();  // every launch submitted before this call is finished

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t submitted_ = 0, finished_ = 0;
};

}  // namespace hg
