#include "host_pool.h"

#include <sched.h>

#include <string>
#include <utility>

#include "futex.h"

namespace hg {
namespace {

constexpr uint32_t kOpen = 0x8000'0000;

// Spins until `ready` or until the time is over; says which.
template <class F>
bool spin_until(std::chrono::microseconds limit, F &&ready) {
  if (ready()) return true;
  if (limit.count() == 0) return false;
  auto end = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

size_t processors(const std::vector<int> &cpus) {
  if (!cpus.empty()) return cpus.size();
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? size_t(CPU_COUNT(&set)) : 1;
}

}  // namespace

Pool::Pool(StatusPage &page, PoolOptions options)
    : page_(page), options_(std::move(options)),
      spin_(options_.workers > processors(options_.cpus) ? std::chrono::microseconds(0) : options_.spin) {
  for (uint32_t i = 1; i < options_.workers; ++i) slots_.push_back(page_.take_slot());
  for (uint32_t i = 1; i < options_.workers; ++i) helpers_.emplace_back(&Pool::help, this, i, slots_[i - 1]);
}

Pool::~Pool() {
  stop();
  for (uint32_t slot : slots_) page_.give_slot(slot);
}

void Pool::stop() {
  std::call_once(stopped_, [&] {
    stopping_.store(true);
    bell_.fetch_add(1);
    futex_wake_all(bell_);
    for (auto &helper : helpers_) helper.join();
  });
}

std::vector<int> Pool::cpus_of(uint32_t index) const {
  if (index < options_.workers && options_.cpus.size() >= options_.workers) return {options_.cpus[index]};
  return options_.cpus;
}

std::vector<int> Pool::lead_cpus(uint32_t n) const { return n == 0 ? cpus_of(0) : options_.cpus; }

void Pool::run(Worker &lead, const Schedule &schedule, uint64_t launch) {
  Run run(schedule, launch);
  bool leased = false;
  work(lead, run, true, leased);
  await_done(lead, run, uint32_t(schedule.chunks.size()));
  if (leased) close_gate();
}

void Pool::work(Worker &worker, Run &run, bool lead, bool &leased) {
  const uint32_t total = uint32_t(run.schedule.chunks.size());
  uint32_t unsaid = 0, step_end = 0;  // chunks finished of the step that ends there, not yet in `done`
  worker.begin(run.launch);
  for (;;) {
    if (lead && !leased && total > 1) leased = open_gate(run);
    uint32_t index = run.next.fetch_add(1, std::memory_order_relaxed);
    // One addition a worker and step: the counter's cache line moves between processors at each.
    if (unsaid != 0 && index >= step_end) finish(run, std::exchange(unsaid, 0), step_end);
    if (index >= total) break;
    const Chunk &chunk = run.schedule.chunks[index];
    if (run.done.load(std::memory_order_acquire) < chunk.after) await_done(worker, run, chunk.after);
    for (uint32_t i = chunk.first; i < chunk.end; ++i) {
      const Operation &operation = run.schedule.operations[i];
      worker.at(operation.node);
      operation.run(operation.params, operation.first, operation.last);
    }
    ++unsaid;
    step_end = chunk.step_end;
  }
  worker.end();
}

// The last to finish a step wakes those who sleep for it. Both counters are sequentially consistent here and in
// await_done: either the sleeper sees the new count, or we see the sleeper.
void Pool::finish(Run &run, uint32_t chunks, uint32_t step_end) {
  if (run.done.fetch_add(chunks) + chunks == step_end && run.sleepers.load() != 0) futex_wake_all(run.done);
}

void Pool::await_done(Worker &worker, Run &run, uint32_t count) {
  auto ready = [&] { return run.done.load(std::memory_order_acquire) >= count; };
  if (spin_until(spin_, ready)) return;
  worker.end();  // who sleeps runs nothing: after a hang the page shows the node that did not end, and no other
  run.sleepers.fetch_add(1);
  for (uint32_t seen; (seen = run.done.load()) < count;) futex_wait(run.done, seen);
  run.sleepers.fetch_sub(1);
}

bool Pool::open_gate(Run &run) {
  if (helpers_.empty() || leased_.load(std::memory_order_relaxed) || leased_.exchange(true)) return false;
  run_ = &run;
  gate_.store(kOpen, std::memory_order_release);
  bell_.fetch_add(1);
  if (bell_sleepers_.load() != 0) futex_wake_all(bell_);
  return true;
}

// From here on nobody enters; those inside find no chunk left and leave within a few instructions.
void Pool::close_gate() {
  uint32_t inside = gate_.fetch_and(~kOpen) & ~kOpen;
  while (inside != 0) {
    if (!spin_until(spin_, [&] { return gate_.load(std::memory_order_acquire) == 0; })) futex_wait(gate_, inside);
    inside = gate_.load(std::memory_order_acquire);
  }
  leased_.store(false, std::memory_order_release);
}

uint32_t Pool::await_bell(uint32_t seen) {
  if (!spin_until(spin_, [&] { return bell_.load(std::memory_order_acquire) != seen; })) {
    bell_sleepers_.fetch_add(1);
    while (bell_.load() == seen) futex_wait(bell_, seen);
    bell_sleepers_.fetch_sub(1);
  }
  return bell_.load(std::memory_order_acquire);
}

void Pool::help(uint32_t index, uint32_t slot) {
  Worker worker(page_, slot, "hg-worker-" + std::to_string(index), cpus_of(index));
  bool none = false;
  for (uint32_t seen = 0;;) {
    seen = await_bell(seen);
    if (stopping_.load()) return;
    uint32_t gate = gate_.load();
    while ((gate & kOpen) && !gate_.compare_exchange_weak(gate, gate + 1)) {}
    if (!(gate & kOpen)) continue;
    work(worker, *run_, false, none);
    // The last helper out wakes a lead that sleeps in close_gate.
    if (gate_.fetch_sub(1) == 1) futex_wake_all(gate_);
  }
}

}  // namespace hg
