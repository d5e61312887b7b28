// The workers of a device and how they run a schedule together.
//
// A launch is led by the thread of its stream. The lead runs chunks itself and opens a gate through which the pool's
// helpers join; one launch has the helpers at a time, others run on their lead alone until the helpers are free. A
// helper that comes late, or never, costs nothing but its help: the launch is finished when all chunks are, and the
// gate is closed when all helpers that came have left.
//
// Waiting is a bounded spin, then sleep. With more threads than processors nobody spins: the one that is waited for
// may need the processor.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "host_schedule.h"
#include "host_worker.h"

namespace hg {

struct PoolOptions {
  uint32_t workers = 1;   // threads that run a launch, its lead included
  std::vector<int> cpus;  // where they run; empty: anywhere. With one CPU or more for each worker, worker i has CPU i
  std::chrono::microseconds spin{50};
};

// The launch under way, shared by its lead and the helpers that joined.
struct alignas(64) Run {
  Run(const Schedule &schedule, uint64_t launch) : schedule(schedule), launch(launch) {}
  const Schedule &schedule;
  const uint64_t launch;
  alignas(64) std::atomic<uint32_t> next{0};  // first chunk that nobody has taken
  alignas(64) std::atomic<uint32_t> done{0};  // finished chunks; workers sleep on it
  std::atomic<uint32_t> sleepers{0};
};

class Pool {
 public:
  Pool(StatusPage &page, PoolOptions options);
  ~Pool();
  Pool(const Pool &) = delete;

  // Runs a schedule to its end, led by the calling thread. Any number of threads at a time.
  void run(Worker &lead, const Schedule &schedule, uint64_t launch);
  // Where the lead of the n-th stream runs.
  std::vector<int> lead_cpus(uint32_t n) const;
  void stop();  // joins the helpers; no launch may be under way or follow. Idempotent
  uint32_t workers() const { return options_.workers; }
  std::chrono::microseconds spin() const { return spin_; }

 private:
  void help(uint32_t index, uint32_t slot);
  void work(Worker &worker, Run &run, bool lead, bool &leased);
  static void finish(Run &run, uint32_t chunks, uint32_t step_end);
  bool open_gate(Run &run);
  void close_gate();
  void await_done(Worker &worker, Run &run, uint32_t count);
  uint32_t await_bell(uint32_t seen);
  std::vector<int> cpus_of(uint32_t index) const;

  StatusPage &page_;
  PoolOptions options_;
  std::chrono::microseconds spin_;
  std::vector<uint32_t> slots_;
  std::vector<std::thread> helpers_;
  std::once_flag stopped_;
  alignas(64) std::atomic<bool> leased_{false};    // a launch has the helpers
  std::atomic<bool> stopping_{false};
  Run *run_ = nullptr;                             // written before the gate opens, read after it was passed
  alignas(64) std::atomic<uint32_t> gate_{0};      // kOpen, and the number of helpers inside
  alignas(64) std::atomic<uint32_t> bell_{0};      // rung at each opening; helpers sleep on it
  std::atomic<uint32_t> bell_sleepers_{0};
};

}  // namespace hg
