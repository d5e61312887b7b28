#include "host_status.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "error.h"

namespace hg {
namespace {

constexpr size_t kOwnBytes = 64 << 10;  // without a file: room for 1,022 workers
constexpr size_t kFaultAt = sizeof(StatusHeader), kSlotsAt = kFaultAt + sizeof(FaultRecord);

size_t size_of_file(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0)
    throw Error("UsageError", "opening the status page", std::string("descriptor ") + std::to_string(descriptor) +
                ": " + strerror(errno), "an open shared file", "pass the descriptor of a memfd of one page");
  size_t bytes = std::min<size_t>(size_t(info.st_size), 16 << 20);
  if (bytes < 4096)
    throw Error("UsageError", "opening the status page", std::to_string(bytes) + " bytes", "4096 bytes or more",
                "set the file's size with ftruncate first");
  return bytes;
}

template <class T>
T read_at(std::span<const uint8_t> page, size_t at) {
  T value;
  memcpy(&value, page.data() + at, sizeof value);
  return value;
}

uint32_t check_header(std::span<const uint8_t> page) {
  bool whole = page.size() >= kSlotsAt && read_at<uint64_t>(page, 0) == kStatusMagic &&
               read_at<uint32_t>(page, offsetof(StatusHeader, version)) == kStatusVersion;
  uint32_t slots = whole ? read_at<uint32_t>(page, offsetof(StatusHeader, slots)) : 0;
  if (!whole || slots > (page.size() - kSlotsAt) / sizeof(WorkerSlot))
    throw Error("FormatError", "reading a status page", std::to_string(page.size()) + " bytes that are none",
                "a page written by a host device of this version", "pass the whole file that the device was opened with");
  return slots;
}

}  // namespace

std::optional<Fault> read_fault(std::span<const uint8_t> page) {
  check_header(page);
  if (read_at<uint32_t>(page, kFaultAt) == 0) return std::nullopt;
  return Fault{read_at<int32_t>(page, kFaultAt + offsetof(FaultRecord, signal)),
               read_at<uint64_t>(page, kFaultAt + offsetof(FaultRecord, address)),
               read_at<uint64_t>(page, kFaultAt + offsetof(FaultRecord, launch)),
               read_at<uint32_t>(page, kFaultAt + offsetof(FaultRecord, node)),
               read_at<uint32_t>(page, kFaultAt + offsetof(FaultRecord, worker))};
}

std::vector<Running> read_running(std::span<const uint8_t> page) {
  std::vector<Running> out;
  for (uint32_t i = 0, slots = check_header(page); i < slots; ++i) {
    size_t at = kSlotsAt + i * sizeof(WorkerSlot);
    uint32_t node = read_at<uint32_t>(page, at + offsetof(WorkerSlot, node));
    if (node != kIdle) out.push_back({i, read_at<uint64_t>(page, at + offsetof(WorkerSlot, launch)), node});
  }
  return out;
}

StatusPage::StatusPage(int descriptor) {
  bytes_ = descriptor < 0 ? kOwnBytes : size_of_file(descriptor);
  int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (base_ == MAP_FAILED)
    throw Error("UsageError", "mapping the status page", strerror(errno), "a file opened for reading and writing",
                "pass the descriptor of a memfd of one page");
  uint32_t slots = uint32_t((bytes_ - kSlotsAt) / sizeof(WorkerSlot));
  auto *bytes = static_cast<std::byte *>(base_);
  memset(base_, 0, kSlotsAt);
  new (bytes) StatusHeader{kStatusMagic, kStatusVersion, slots};
  fault_ = new (bytes + kFaultAt) FaultRecord{};
  slots_ = reinterpret_cast<WorkerSlot *>(bytes + kSlotsAt);
  for (uint32_t i = 0; i < slots; ++i) new (slots_ + i) WorkerSlot{{0}, {kIdle}};
  taken_.resize(slots);
}

StatusPage::~StatusPage() { munmap(base_, bytes_); }

uint32_t StatusPage::take_slot() {
  std::lock_guard lock(mutex_);
  auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end())
    throw Error("UsageError", "adding a worker or stream to the status page",
                std::to_string(taken_.size()) + " slots, all taken", "one slot a worker and stream",
                "make the status file larger: 128 bytes and 64 a slot");
  *free = true;
  return uint32_t(free - taken_.begin());
}

void StatusPage::give_slot(uint32_t index) {
  std::lock_guard lock(mutex_);
  slots_[index].node.store(kIdle, std::memory_order_relaxed);
  taken_[index] = false;
}

}  // namespace hg
