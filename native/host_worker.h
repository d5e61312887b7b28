// What makes a thread a worker: its slot in the status page, its signal stack, its floating-point control word, its
// signal mask and the processors it may use. And the handler that writes down what a worker ran when it faulted.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host_status.h"

namespace hg {

// Installs the handler for SIGSEGV, SIGBUS, SIGFPE and SIGILL, once a process. A fault outside a kernel goes to the
// handler that was there before.
void install_fault_handler();

// The work of one thread, from its first line to its last. Constructed and destroyed on that thread.
class Worker {
 public:
  // `name` is the thread's, up to 15 letters. `cpus` empty: wherever the process may run.
  Worker(StatusPage &page, uint32_t slot, const std::string &name, const std::vector<int> &cpus);
  ~Worker();
  Worker(const Worker &) = delete;

  void begin(uint64_t launch) {
    reset_control_word();
    slot_.launch.store(launch, std::memory_order_relaxed);
  }
  // The node stands in the page before its kernel is entered. A signal handler and another process read it: both see
  // a thread's stores in order, so relaxed is enough.
  void at(uint32_t node) { slot_.node.store(node, std::memory_order_relaxed); }
  void end() { slot_.node.store(kIdle, std::memory_order_relaxed); }

 private:
  friend void record_fault(const Worker &, int, uint64_t);
  friend bool inside_kernel(const Worker &);
  // Round to nearest, denormals kept, no traps: the same bits on every worker, whatever a library has set.
  static void reset_control_word();

  StatusPage &page_;
  uint32_t index_;
  WorkerSlot &slot_;
  std::unique_ptr<std::byte[]> signal_stack_;
};

// A kernel (host/kernel_abi.h) that faults: it stores to a page that nobody may touch.
void fault_kernel(const void *params, uint32_t first, uint32_t last);

}  // namespace hg
