// The status page: which node each worker runs, all the time, and what faulted. It lies in a file that a supervisor
// shares, so it outlives this process, however that ends.
//
//   64 bytes   header       magic, version, number of slots
//   64 bytes   fault        written once, by the first worker that faults
//   64 bytes   a slot       one a worker: launch and node that it runs now
//
// A slot is a cache line of its own: a worker writes it once a node and nobody else does.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace hg {

constexpr uint64_t kStatusMagic = 0x3153'5554'4154'4748;  // "HGTATUS1"
constexpr uint32_t kStatusVersion = 1;
constexpr uint32_t kIdle = 0xFFFF'FFFF;    // a slot's node while its worker runs nothing
constexpr uint32_t kNoNode = 0xFFFF'FFFE;  // ... while it runs a kernel that belongs to no graph

struct alignas(64) StatusHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slots;
};

struct alignas(64) FaultRecord {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 complete
  int32_t signal;
  uint64_t address;
  uint64_t launch;
  uint32_t node;
  uint32_t worker;
};

struct alignas(64) WorkerSlot {
  std::atomic<uint64_t> launch;
  std::atomic<uint32_t> node;
};

static_assert(sizeof(StatusHeader) == 64 && sizeof(FaultRecord) == 64 && sizeof(WorkerSlot) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct Fault {
  int32_t signal;
  uint64_t address, launch;
  uint32_t node, worker;
};
struct Running {
  uint32_t worker;
  uint64_t launch;
  uint32_t node;
};

// Both read a copy or a mapping of a page that another process may be writing. FormatError if it is no status page.
std::optional<Fault> read_fault(std::span<const uint8_t> page);
std::vector<Running> read_running(std::span<const uint8_t> page);

class StatusPage {
 public:
  // descriptor -1: memory of our own. Throws UsageError if the file cannot be shared or has no room for one slot.
  explicit StatusPage(int descriptor);
  ~StatusPage();
  StatusPage(const StatusPage &) = delete;

  uint32_t take_slot();  // UsageError when all are taken, saying how large the file must be
  void give_slot(uint32_t index);
  WorkerSlot &slot(uint32_t index) { return slots_[index]; }
  FaultRecord &fault() { return *fault_; }

 private:
  void *base_;
  size_t bytes_;
  FaultRecord *fault_;
  WorkerSlot *slots_;
  std::mutex mutex_;  // guards taken_
  std::vector<bool> taken_;
};

}  // namespace hg
