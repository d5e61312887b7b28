// The CPU as a device: its memory budget, workers, streams and counters.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver.h"
#include "host_memory.h"
#include "host_pool.h"
#include "host_queue.h"

namespace hg {

class HostStream;

struct HostCounters {  // all since the device was opened, except *_live and *_bytes: now
  std::atomic<uint64_t> templates_created{0}, executables_created{0}, executables_live{0}, executable_bytes{0};
  std::atomic<uint64_t> launches{0}, nodes_run{0}, modules_loaded{0}, modules_live{0};
  std::atomic<uint64_t> reservations_live{0}, bytes_mapped{0}, streams_live{0};
};

struct HostOptions {
  uint32_t workers = 0;   // 0: as many as the process may use processors
  std::vector<int> cpus;  // empty: wherever the process may run
  uint64_t memory_limit = 0;
  std::chrono::microseconds spin{50};
  int status_fd = -1;
};

class HostDevice : public Device {
 public:
  static std::shared_ptr<HostDevice> open(HostOptions options);
  explicit HostDevice(HostOptions options);  // use open()
  ~HostDevice() override;

  std::string kind() const override { return "host"; }
  std::string arch() const override;
  bool alive() const override { return !closed_.load() && !forked(); }
  uint64_t granularity() const override;
  std::optional<uint64_t> free_bytes() const override { return budget_.left(); }
  std::shared_ptr<Reservation> reserve(uint64_t address, uint64_t span) override;
  std::shared_ptr<Module> load_module(std::shared_ptr<const SealedImage> image) override;
  std::shared_ptr<Stream> create_stream() override;
  std::shared_ptr<Event> create_event() override;
  std::shared_ptr<Template> create_template() override;
  void synchronize() override;
  void close() override;
  std::map<std::string, uint64_t> counters() const override;

  // The node of the launch-th launch from now on faults, as by SIGSEGV.
  void inject_fault(uint64_t launch, uint32_t node);

  // For the other host_*.cpp.
  uint32_t workers() const { return workers_; }
  Pool &pool() { return *pool_; }
  HostCounters &counts() { return *counters_; }
  MemoryBudget &budget() { return budget_; }
  uint64_t launches() const { return counters_->launches.load(); }
  uint64_t next_launch() { return counters_->launches.fetch_add(1); }
  // The schedule in which a fault was planted, if one is for this launch.
  std::shared_ptr<const Schedule> injected(const Schedule &schedule, uint64_t launch);
  HostStream &own_stream(Stream &stream, const char *doing) const;

  bool forked() const;                        // in a child of the process that opened it: no worker is here
  void check_process(const char *doing) const;  // UsageError after a fork
  void check_open(const char *doing) const;     // UsageError after a fork or when closed
  void await_idle();                          // synchronize(), but nothing to do when closed or forked

 private:
  struct Injection {
    uint64_t launch;
    uint32_t node;
  };

  const uint64_t birth_;  // number of forks before it was opened
  StatusPage page_;
  MemoryBudget budget_;
  std::shared_ptr<HostCounters> counters_ = std::make_shared<HostCounters>();
  uint32_t workers_;
  std::unique_ptr<Pool> pool_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> injecting_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<StreamQueue>> queues_;  // of streams, and of destroyed ones that still have work
  uint32_t streams_made_ = 0;
  std::vector<Injection> injections_;
};

// Closes every host device of the process: the exit hook, so that no worker runs while the interpreter goes away.
void close_host_devices();

}  // namespace hg
