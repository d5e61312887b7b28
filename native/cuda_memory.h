// A span of device addresses that is ours, and the physical memory mapped into it.
#pragma once
#include "cuda_context.h"
#include "cuda_pinned.h"

namespace hg {

// How a range is backed.
struct Backing {
  bool exportable = false;  // its handle can be passed to another process as a file descriptor
  bool zeroed = true;       // not possible while this thread's stream capture is under way
};

class CudaReservation final : public Reservation {
 public:
  // The driver takes the address as a hint: any other answer is given back and refused (AddressTakenError).
  CudaReservation(std::shared_ptr<CudaContext> context, uint64_t address, uint64_t span);
  // Waits for all work of the context, as unmap() does: the driver does not say that unmapping does. Where it refuses
  // to wait (as while any stream of the context captures), memory and addresses are left to the context.
  ~CudaReservation() override;
  uint64_t address() const override { return address_; }
  uint64_t span() const override { return span_; }
  uint64_t mapped_bytes() const override;
  void map(uint64_t offset, uint64_t size) override { map(offset, size, Backing{}); }
  void map(uint64_t offset, uint64_t size, Backing backing);
  // The range must be made of whole earlier map() calls: the driver unmaps an allocation whole. It stays mapped where
  // the driver refuses to wait for work that may use it.
  void unmap(uint64_t offset, uint64_t size) override;
  // Likewise.
  void protect(uint64_t offset, uint64_t size, bool writable) override;
  void write(uint64_t offset, const void *from, size_t size) override;
  void read(uint64_t offset, void *to, size_t size) override;
  void fill(uint64_t offset, uint8_t value, uint64_t size) override;
  void *host_pointer(uint64_t, size_t) override { return nullptr; }
  bool writable(uint64_t offset, uint64_t size) const override;
  // Copies in stream order. Neither memory goes while a copy of it is under way: closing or dropping either, and
  // unmapping, wait for it. UsageError outside either, on a stream of another device, or on one that is capturing.
  void write_async(uint64_t offset, const PinnedMemory &source, uint64_t at, uint64_t size, Stream &stream);
  void read_async(uint64_t offset, const PinnedMemory &target, uint64_t at, uint64_t size, Stream &stream);
  const std::shared_ptr<CudaContext> &context() const { return context_; }

 private:
  struct Mapping {
    uint64_t size;
    CUmemGenericAllocationHandle handle;
    bool writable;
  };
  using Mappings = std::map<uint64_t, Mapping>;  // by offset; they do not overlap
  void check_range(uint64_t offset, uint64_t size, const char *doing) const;
  bool filled() const;          // no fill that was submitted may still run
  template <class Copy>
  void copy_async(uint64_t offset, const PinnedMemory &host, uint64_t at, uint64_t size, Stream &stream,
                  const char *doing, Copy copy);
  void set_access(uint64_t offset, uint64_t size, bool writable, const char *doing);
  // The mappings that make up [offset, offset+size), or an error.
  std::pair<Mappings::iterator, Mappings::iterator> whole(uint64_t offset, uint64_t size, const char *doing);

  std::shared_ptr<CudaContext> context_;
  uint64_t address_, span_;
  uint64_t reserved_;  // at least what the driver puts where it is asked to
  mutable std::mutex mutex_;
  Mappings mappings_;
};

// The CUDA memory behind a reservation, or UsageError if it belongs to another device.
CudaReservation &cuda_reservation(Reservation &reservation, const char *doing);

uint64_t cuda_granularity(const CudaContext &context);
uint64_t cuda_free_bytes(const CudaContext &context);

}  // namespace hg
