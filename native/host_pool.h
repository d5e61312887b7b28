// The workers of a device and how they run a schedule together.
//
// A launch is led by the thread of its stream. The lead runs chunks itself and opens a gate through which the pool's
// helpers join; one launch has the helpers at a time, others run on their lead alone until the helpers are free. A
// helper that comes late, or never, costs nothing but its help: its share is run by the others. The launch is finished
// when all chunks are, and the gate is closed when all helpers that came have left.
//
// In each step a worker runs its own share, says so, and waits for the others; if that takes longer than a moment it
// takes chunks of theirs. When all goes well nobody writes a cache line that another writes, and a barrier costs little
// more than one line's way from core to core (docs/decisions/0002-worker-pool.md has the numbers).
//
// Waiting is a bounded spin, then sleep. With more threads than processors nobody spins: the one that is waited for
// may need the processor.
#pragma once
#include <array>
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

// What one worker did in a step: the step's number plus one, and how many of its chunks. Each step has a line of its
// own, used again kSaid steps later, so its owner can take it back from those who read it well before it writes it.
struct Said {
  alignas(64) std::atomic<uint64_t> value{0};
};
constexpr uint32_t kSaid = 8;

// One worker's part in a launch.
struct Lane {
  alignas(64) std::atomic<uint32_t> next{0};  // its first chunk that nobody has taken; only ever raised
  std::array<Said, kSaid> said;
};

// The launch under way, shared by its lead (lane 0) and the helpers that joined.
struct Run {
  Run(const Schedule &schedule, uint64_t launch) : schedule(schedule), launch(launch), lanes(schedule.workers) {}
  // All chunks of a step are done. A worker that has said something about a later step proves it as well.
  bool complete(uint32_t step) const;
  const Schedule &schedule;
  const uint64_t launch;
  std::vector<Lane> lanes;
  alignas(64) std::atomic<uint32_t> at{0};  // the lead's step: where a helper that comes begins to look
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
  static void say(Run &run, uint32_t step, uint32_t lane, uint32_t chunks);
  void await_step(Worker &worker, Run &run, uint32_t step);
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
