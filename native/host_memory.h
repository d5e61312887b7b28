// Fixed-address memory of the host device.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "driver.h"

namespace hg {

class HostDevice;

// What may be mapped and held by executables. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}  // 0: no limit
  void take(const char *doing, uint64_t bytes);             // OutOfMemoryError with the numbers, and nothing taken
  void give(uint64_t bytes) { used_.fetch_sub(bytes); }
  std::optional<uint64_t> left() const;  // nothing without a limit

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

// The mapped parts of a reservation, in order, none touching another's bytes. Pure.
class MappedParts {
 public:
  bool any(uint64_t offset, uint64_t size) const;                          // a byte of the range is mapped
  bool all(uint64_t offset, uint64_t size, bool writable_only) const;      // every byte is
  void add(uint64_t offset, uint64_t size);
  void remove(uint64_t offset, uint64_t size);                             // all() of it must be mapped
  void set_writable(uint64_t offset, uint64_t size, bool writable);        // likewise
  uint64_t bytes() const { return bytes_; }

 private:
  struct Part {
    uint64_t end;
    bool writable;
  };
  void split(uint64_t at);
  std::map<uint64_t, Part> parts_;
  uint64_t bytes_ = 0;
};

class HostReservation : public Reservation {
 public:
  HostReservation(std::shared_ptr<HostDevice> device, uint64_t address, uint64_t span);
  ~HostReservation() override;

  uint64_t address() const override { return address_; }
  uint64_t span() const override { return span_; }
  uint64_t mapped_bytes() const override;
  void map(uint64_t offset, uint64_t size) override;
  void unmap(uint64_t offset, uint64_t size) override;
  void protect(uint64_t offset, uint64_t size, bool writable) override;
  void write(uint64_t offset, const void *from, size_t size) override;
  void read(uint64_t offset, void *to, size_t size) override;
  void fill(uint64_t offset, uint8_t value, uint64_t size) override;
  void *host_pointer(uint64_t offset, size_t size) override;
  bool writable(uint64_t offset, uint64_t size) const override;

 private:
  std::byte *at(uint64_t offset) const { return reinterpret_cast<std::byte *>(address_ + offset); }
  void check_pages(const char *doing, uint64_t offset, uint64_t size) const;
  void check_mapped(const char *doing, uint64_t offset, uint64_t size, bool writable) const;  // with mutex_ held

  std::shared_ptr<HostDevice> device_;
  const uint64_t address_, span_;
  mutable std::mutex mutex_;  // guards parts_ and the mappings that mirror it
  MappedParts parts_;
};

}  // namespace hg
