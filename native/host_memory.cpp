#include "host_memory.h"

#include <sys/mman.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "host_driver.h"
#include "text.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace hg {
namespace {

// Not backed and not counted by the kernel: a region's span is much larger than what is mapped of it.
constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr int kSetName = 0x53564d61;  // PR_SET_VMA; the name is seen in /proc/self/maps, on kernels that keep it

std::string range_text(uint64_t begin, uint64_t size) { return hex(begin) + " to " + hex(begin + size); }

// The lines of /proc/self/maps that overlap a range: what is there.
std::string occupants(uint64_t address, uint64_t span) {
  std::unique_ptr<FILE, int (*)(FILE *)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
  char line[4096 + 128];  // a path and what stands before it
  std::string first;
  size_t count = 0;
  while (maps && std::fgets(line, sizeof line, maps.get())) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line, "%llx-%llx", &begin, &end) != 2 || end <= address || begin >= address + span) continue;
    if (count++ == 0) first.assign(line, std::strcspn(line, "\n"));
  }
  if (count == 0) return "a mapping that /proc/self/maps does not show";
  return first + (count > 1 ? " and " + std::to_string(count - 1) + " more mapping(s)" : "");
}

void name_mapping(void *at, uint64_t size) { prctl(kSetName, 0, at, size, "heliograph"); }

void *reserve(uint64_t address, uint64_t span) {
  const std::string doing = "reserving " + range_text(address, span);
  void *wanted = reinterpret_cast<void *>(address);
  void *given = mmap(wanted, span, PROT_NONE, kReserve | MAP_FIXED_NOREPLACE, -1, 0);
  if (given != MAP_FAILED && given != wanted) {  // a kernel older than 4.17 takes the address for a wish
    munmap(given, span);
    errno = EEXIST;
  } else if (given != MAP_FAILED) {
    name_mapping(given, span);
    return given;
  }
  if (errno == EEXIST)
    throw Error("AddressTakenError", doing, occupants(address, span), "free addresses",
                "two cores of one slot cannot be loaded together; otherwise start a fresh process");
  throw Error("OutOfMemoryError", doing, std::string("mmap: ") + strerror(errno), "address space of that size",
              "check the limit on address space (ulimit -v) and vm.overcommit_memory");
}

}  // namespace

void MemoryBudget::take(const char *doing, uint64_t bytes) {
  uint64_t used = used_.load();
  do {
    if (limit_ != 0 && bytes > limit_ - std::min(used, limit_))
      throw Error("OutOfMemoryError", doing,
                  std::to_string(bytes) + " bytes asked for with " + std::to_string(used) + " in use",
                  "at most " + std::to_string(limit_) + " bytes in all", "raise the memory limit, or hold less at a time");
  } while (!used_.compare_exchange_weak(used, used + bytes));
}

std::optional<uint64_t> MemoryBudget::left() const {
  if (limit_ == 0) return std::nullopt;
  return limit_ - std::min(used_.load(), limit_);
}

bool MappedParts::any(uint64_t offset, uint64_t size) const {
  auto next = parts_.upper_bound(offset);
  if (next != parts_.begin() && std::prev(next)->second.end > offset) return true;
  return next != parts_.end() && next->first < offset + size;
}

bool MappedParts::all(uint64_t offset, uint64_t size, bool writable_only) const {
  auto next = parts_.upper_bound(offset);
  if (next == parts_.begin()) return false;
  uint64_t at = offset, end = offset + size;
  for (auto part = std::prev(next); part != parts_.end() && part->first <= at; ++part) {
    if (part->second.end <= at || (writable_only && !part->second.writable)) return false;
    at = part->second.end;
    if (at >= end) return true;
  }
  return false;
}

void MappedParts::split(uint64_t at) {
  auto next = parts_.upper_bound(at);
  if (next == parts_.begin()) return;
  auto part = std::prev(next);
  if (part->first == at || part->second.end <= at) return;
  parts_.emplace(at, part->second);
  part->second.end = at;
}

void MappedParts::add(uint64_t offset, uint64_t size) {
  parts_.emplace(offset, Part{offset + size, true});
  bytes_ += size;
}

void MappedParts::remove(uint64_t offset, uint64_t size) {
  split(offset);
  split(offset + size);
  parts_.erase(parts_.lower_bound(offset), parts_.lower_bound(offset + size));
  bytes_ -= size;
}

void MappedParts::set_writable(uint64_t offset, uint64_t size, bool writable) {
  split(offset);
  split(offset + size);
  auto end = parts_.lower_bound(offset + size);
  for (auto part = parts_.lower_bound(offset); part != end; ++part) part->second.writable = writable;
}

HostReservation::HostReservation(std::shared_ptr<HostDevice> device, uint64_t address, uint64_t span)
    : device_(std::move(device)), address_(address), span_(span) {
  check_pages("reserving addresses", 0, span);
  if (address == 0 || address % device_->granularity() != 0 || address + span < address)
    throw Error("UsageError", "reserving addresses", hex(address), "a non-zero multiple of the device's granularity",
                "the bases of regions are in core.format");
  reserve(address, span);
  device_->counts().reservations_live.fetch_add(1);
}

HostReservation::~HostReservation() {
  // holds: R4 tests/conformance/test_lifetimes.py::test_memory_is_not_unmapped_under_running_work
  device_->await_idle();
  munmap(at(0), span_);
  device_->budget().give(parts_.bytes());
  device_->counts().reservations_live.fetch_sub(1);
  device_->counts().bytes_mapped.fetch_sub(parts_.bytes());
}

void HostReservation::check_pages(const char *doing, uint64_t offset, uint64_t size) const {
  uint64_t unit = device_->granularity();
  if (size == 0 || offset % unit != 0 || size % unit != 0)
    throw Error("UsageError", doing, "offset " + std::to_string(offset) + ", size " + std::to_string(size),
                "multiples of " + std::to_string(unit), "round to the device's granularity");
  if (offset > span_ || size > span_ - offset)
    throw Error("UsageError", doing, "offset " + std::to_string(offset) + ", size " + std::to_string(size),
                "a range inside the reservation of " + std::to_string(span_) + " bytes", "reserve a larger span");
}

void HostReservation::check_mapped(const char *doing, uint64_t offset, uint64_t size, bool writable) const {
  if (offset > span_ || size > span_ - offset || !parts_.all(offset, size, false))
    throw Error("UsageError", doing, range_text(address_ + offset, size) + ", not mapped as a whole", "mapped memory",
                "map it first");
  if (writable && !parts_.all(offset, size, true))
    throw Error("UsageError", doing, range_text(address_ + offset, size) + ", read-only", "writable memory",
                "protect(..., writable=True) first");
}

uint64_t HostReservation::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  return parts_.bytes();
}

void HostReservation::map(uint64_t offset, uint64_t size) {
  constexpr const char *doing = "mapping memory";
  device_->check_open(doing);
  std::lock_guard lock(mutex_);
  check_pages(doing, offset, size);
  if (parts_.any(offset, size))
    throw Error("UsageError", doing, range_text(address_ + offset, size) + ", partly mapped already",
                "a range that is not mapped", "unmap it first");
  device_->budget().take(doing, size);
  // Replaces pages of our own reservation, which nobody else can have taken.
  if (mmap(at(offset), size, PROT_READ | PROT_WRITE, kReserve | MAP_FIXED, -1, 0) == MAP_FAILED) {
    int code = errno;
    device_->budget().give(size);
    throw Error("OutOfMemoryError", doing, std::string("mmap: ") + strerror(code) + " for " + std::to_string(size) +
                " bytes", "memory for them", "check ulimit -v, vm.overcommit_memory and vm.max_map_count");
  }
  // Where the machine grants huge pages they save most of the time of first touching (reading weights into fresh
  // memory by one thread: 0.39 GB/s with small pages, 0.78 GB/s with huge ones, 2026-11). A wish only.
  madvise(at(offset), size, MADV_HUGEPAGE);
  name_mapping(at(offset), size);
  parts_.add(offset, size);
  device_->counts().bytes_mapped.fetch_add(size);
}

void HostReservation::unmap(uint64_t offset, uint64_t size) {
  constexpr const char *doing = "unmapping memory";
  device_->await_idle();
  std::lock_guard lock(mutex_);
  check_pages(doing, offset, size);
  check_mapped(doing, offset, size, false);
  if (mmap(at(offset), size, PROT_NONE, kReserve | MAP_FIXED, -1, 0) == MAP_FAILED)
    throw Error("OutOfMemoryError", doing, std::string("mmap: ") + strerror(errno), "one more mapping",
                "check vm.max_map_count");
  name_mapping(at(offset), size);
  parts_.remove(offset, size);
  device_->budget().give(size);
  device_->counts().bytes_mapped.fetch_sub(size);
}

void HostReservation::protect(uint64_t offset, uint64_t size, bool writable) {
  constexpr const char *doing = "protecting memory";
  std::lock_guard lock(mutex_);
  check_pages(doing, offset, size);
  check_mapped(doing, offset, size, false);
  if (mprotect(at(offset), size, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
    throw Error("OutOfMemoryError", doing, std::string("mprotect: ") + strerror(errno), "one more mapping",
                "check vm.max_map_count");
  parts_.set_writable(offset, size, writable);
}

void HostReservation::write(uint64_t offset, const void *from, size_t size) {
  if (size == 0) return;
  {
    std::lock_guard lock(mutex_);
    check_mapped("writing memory", offset, size, true);
  }
  memcpy(at(offset), from, size);
}

void HostReservation::read(uint64_t offset, void *to, size_t size) {
  if (size == 0) return;
  {
    std::lock_guard lock(mutex_);
    check_mapped("reading memory", offset, size, false);
  }
  memcpy(to, at(offset), size);
}

void HostReservation::fill(uint64_t offset, uint8_t value, uint64_t size) {
  if (size == 0) return;
  {
    std::lock_guard lock(mutex_);
    check_mapped("filling memory", offset, size, true);
  }
  // Zeroes by giving whole pages back: a sparse region of a terabyte stays sparse.
  constexpr uint64_t page = 4096, worthwhile = 1 << 20;
  if (value == 0 && size >= worthwhile) {
    uint64_t first = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    if (madvise(at(first), end - first, MADV_DONTNEED) == 0) {
      memset(at(offset), 0, first - offset);
      memset(at(end), 0, offset + size - end);
      return;
    }
  }
  memset(at(offset), value, size);
}

void *HostReservation::host_pointer(uint64_t offset, size_t size) {
  std::lock_guard lock(mutex_);
  bool mapped = offset <= span_ && size <= span_ - offset && (size == 0 || parts_.all(offset, size, false));
  return mapped ? at(offset) : nullptr;
}

bool HostReservation::writable(uint64_t offset, uint64_t size) const {
  std::lock_guard lock(mutex_);
  return size == 0 || parts_.all(offset, size, true);
}

}  // namespace hg
