// The workers of a device and how they run a schedule together.
//
// A launch is led by the thread of its stream. The lead runs chunks itself and opens a gate through which the pool's
// helpers join; one launch has the helpers at a time, others run on their lead alone until the helpers are free. A
// helper that comes late, or never, costs nothing but its help: its share is run by the others. The launch is finished
// when all chunks are, and the gate is closed when all helpers that came have left.
//
// In each step a worker runs its own share, says so, and waits for the others; if that takes longer than a moment it
// takes chunks of theirs. Each worker has a cache line that it alone writes when all goes well, so a barrier costs one
// line's way there and back (two cores, 2026-11-30: 0.15 us a node, against 0.4 us with counters that all share).
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

// One worker's part in a launch.
struct Lane {
  alignas(64) std::atomic<uint32_t> next{0};  // its first chunk that nobody has taken; only ever raised
  alignas(64) std::atomic<uint32_t> done{0};  // chunks it has finished, its own and others'
};

// The launch under way, shared by its lead (lane 0) and the helpers that joined.
struct Run {
  Run(const Schedule &schedule, uint64_t launch) : schedule(schedule), launch(launch), lanes(schedule.workers) {}
  uint32_t done() const {
    uint32_t sum = 0;
    for (const Lane &lane : lanes) sum += lane.done.load();
    return sum;
  }
  const Schedule &schedule;
  const uint64_t launch;
  std::vector<Lane> lanes;
  alignas(64) std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> wakes{0};  // sleepers sleep on it
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
  void work(Worker &worker, Run &run, uint32_t lane);
  uint32_t run_share(Worker &worker, Run &run, uint32_t step, uint32_t lane);
  bool alone(const Run &run) const;
  void await_done(Worker &worker, Run &run, uint32_t chunks);
  void open_gate(Run &run);
  void close_gate(Run &run);
  uint32_t await_bell(uint32_t seen);
  std::vector<int> cpus_of(uint32_t index) const;

  StatusPage &page_;
  PoolOptions options_;
  std::chrono::microseconds spin_;
  std::vector<uint32_t> slots_;
  std::vector<std::thread> helpers_;
  std::once_flag stopped_;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<Run *> run_{nullptr};  // the launch that has the helpers
  alignas(64) std::atomic<uint32_t> gate_{0};    // kOpen, and the number of helpers inside
  alignas(64) std::atomic<uint32_t> bell_{0};    // rung at each opening; helpers sleep on it
  std::atomic<uint32_t> bell_sleepers_{0};
};

}  // namespace hg
