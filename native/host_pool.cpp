#include "host_pool.h"

#include <sched.h>

#include <algorithm>
#include <string>

#include "futex.h"

namespace hg {
namespace {

constexpr uint32_t kOpen = 0x8000'0000;
constexpr int kPatience = 32;  // looks at the others' counts, a pause each, before their chunks are taken: about 1 us

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

// Makes a cache line this processor's own before it is written: nobody waits for that later.
void take_line(void *line) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" ::"r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
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

bool Run::complete(uint32_t step) const {
  const uint64_t number = uint64_t(step) + 1;
  uint32_t chunks = 0;
  for (const Lane &lane : lanes) {
    const uint64_t said = lane.said[step % kSaid].value.load();
    if ((said >> 32) > number) return true;
    if ((said >> 32) == number) chunks += uint32_t(said);
  }
  return chunks == schedule.end(step) - schedule.begin(step);
}

void Pool::run(Worker &lead, const Schedule &schedule, uint64_t launch) {
  Run run(schedule, launch);
  work(lead, run, 0);
  if (schedule.steps() != 0) await_step(lead, run, schedule.steps() - 1);
  close_gate(run);
  lead.end();
}

void Pool::work(Worker &worker, Run &run, uint32_t lane) {
  const Schedule &schedule = run.schedule;
  const uint32_t lanes = schedule.workers;
  bool patient = true;
  worker.begin(run.launch);
  for (uint32_t step = run.at.load(); step < schedule.steps(); ++step) {
    if (lane == 0) run.at.store(step, std::memory_order_relaxed);
    if (lane == 0 && lanes > 1) open_gate(run);
    if (step != 0) await_step(worker, run, step - 1);
    uint32_t done = run_share(worker, run, step, lane);
    const uint32_t own = done;
    say(run, step, lane, done);
    // The others are about to end as well, unless they were not in time for the last step either, or are not there.
    for (int i = 0; patient && i < kPatience && !alone(run) && !run.complete(step); ++i) pause();
    for (uint32_t i = 1; i < lanes && !run.complete(step); ++i) {
      const uint32_t taken = run_share(worker, run, step, (lane + i) % lanes);
      if (taken != 0) say(run, step, lane, done += taken);
    }
    patient = done == own;
  }
}

// Sequentially consistent, as in await_step: the last to say something about a step sees all of it, and the sleepers.
void Pool::say(Run &run, uint32_t step, uint32_t lane, uint32_t chunks) {
  auto &said = run.lanes[lane].said;
  if (chunks != 0) said[step % kSaid].value.store((uint64_t(step) + 1) << 32 | chunks);
  take_line(&said[(step + kSaid / 2) % kSaid]);
  if (chunks == 0 || run.sleepers.load() == 0 || !run.complete(step)) return;
  run.wakes.fetch_add(1);
  futex_wake_all(run.wakes);
}

// Runs the chunks of a lane's share of a step that nobody has taken. The step must have begun.
uint32_t Pool::run_share(Worker &worker, Run &run, uint32_t step, uint32_t lane) {
  const Schedule &schedule = run.schedule;
  const uint32_t begin = schedule.share(step, lane), end = schedule.share(step, lane + 1);
  std::atomic<uint32_t> &next = run.lanes[lane].next;
  uint32_t taken = 0;
  for (uint32_t seen = next.load(std::memory_order_relaxed); std::max(seen, begin) < end;) {
    const uint32_t index = std::max(seen, begin);
    if (!next.compare_exchange_weak(seen, index + 1, std::memory_order_relaxed)) continue;
    seen = index + 1;
    ++taken;
    const Chunk &chunk = schedule.chunks[index];
    for (uint32_t i = chunk.first; i < chunk.end; ++i) {
      const Operation &operation = schedule.operations[i];
      worker.at(operation.node);
      operation.run(operation.params, operation.first, operation.last);
    }
  }
  return taken;
}

// No helper is in this launch now, so no worker but its lead.
bool Pool::alone(const Run &run) const {
  return run_.load(std::memory_order_relaxed) != &run || (gate_.load(std::memory_order_relaxed) & ~kOpen) == 0;
}

void Pool::await_step(Worker &worker, Run &run, uint32_t step) {
  auto ready = [&] { return run.complete(step); };
  if (spin_until(spin_, ready)) return;
  worker.end();  // who sleeps runs nothing: after a hang the page shows the node that did not end, and no other
  run.sleepers.fetch_add(1);
  for (uint32_t seen = run.wakes.load(); !ready(); seen = run.wakes.load()) futex_wait(run.wakes, seen);
  run.sleepers.fetch_sub(1);
}

// Gives the helpers to this launch if no other has them. Cheap when there is nothing to do.
void Pool::open_gate(Run &run) {
  Run *nobody = run_.load(std::memory_order_relaxed);
  if (nobody != nullptr || helpers_.empty() || !run_.compare_exchange_strong(nobody, &run)) return;
  gate_.store(kOpen, std::memory_order_release);
  bell_.fetch_add(1);
  if (bell_sleepers_.load() != 0) futex_wake_all(bell_);
}

// From here on nobody enters; those inside find no chunk left and leave within a few instructions.
void Pool::close_gate(Run &run) {
  if (run_.load(std::memory_order_relaxed) != &run) return;
  uint32_t inside = gate_.fetch_and(~kOpen) & ~kOpen;
  while (inside != 0) {
    if (!spin_until(spin_, [&] { return gate_.load(std::memory_order_acquire) == 0; })) futex_wait(gate_, inside);
    inside = gate_.load(std::memory_order_acquire);
  }
  run_.store(nullptr, std::memory_order_release);
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
  for (uint32_t seen = 0;;) {
    seen = await_bell(seen);
    if (stopping_.load()) return;
    uint32_t gate = gate_.load();
    while ((gate & kOpen) && !gate_.compare_exchange_weak(gate, gate + 1)) {}
    if (!(gate & kOpen)) continue;
    work(worker, *run_.load(std::memory_order_relaxed), index);
    worker.end();
    // The last helper out wakes a lead that sleeps in close_gate.
    if (gate_.fetch_sub(1) == 1) futex_wake_all(gate_);
  }
}

}  // namespace hg
