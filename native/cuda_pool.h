// Memory of ours handed to PyTorch's pluggable allocator: one pool a role, each behind a pair of C functions.
//
// PyTorch knows an allocator by two addresses without a context, so there is a fixed table of pairs, and a pool takes
// a place in it. It keeps that place until it has ended and nothing of it is out: a piece given back late never reaches
// another pool.
#pragma once
#include <array>
#include <sys/types.h>

#include "cuda_memory.h"
#include "ranges.h"

namespace hg {

class CudaPool : public std::enable_shared_from_this<CudaPool> {
 public:
  static constexpr size_t kPlaces = 4;
  // The part [offset, offset+span) of a reservation, both multiples of the granularity, nothing of it mapped.
  // UsageError when all places are taken.
  static std::shared_ptr<CudaPool> open(std::shared_ptr<Reservation> reservation, uint64_t offset, uint64_t span,
                                        std::string name);
  CudaPool(std::shared_ptr<CudaReservation> reservation, uint64_t offset, uint64_t span, std::string name);
  CudaPool(const CudaPool &) = delete;
  CudaPool &operator=(const CudaPool &) = delete;

  const std::string &name() const { return name_; }
  uint64_t address() const { return address_; }
  uint64_t span() const { return span_; }
  // void *(ssize_t bytes, int device, cudaStream_t) and void (void *, ssize_t bytes, int device, cudaStream_t).
  uint64_t alloc_address() const;
  uint64_t free_address() const;
  uint64_t peak() const;
  uint64_t mapped_bytes() const;
  std::vector<std::pair<uint64_t, uint64_t>> live() const;  // (address, bytes asked for), ascending
  std::optional<Error> error() const;                       // of the last call that failed

  // From now on null is handed out, and the place is free again once nothing is out. Closing lets go of the memory at
  // once: it ends with its reservation, whoever still uses it. Leaving holds it until the last piece is given back.
  void close();
  void leave();

  // What the C functions do. A failure is remembered and answered with null: nothing may be thrown through C.
  void *allocate(ssize_t size, int device) noexcept;
  void free(void *piece) noexcept;

 private:
  uint64_t take(ssize_t size, int device);
  void end(bool hold);
  void give_place_back();  // if it has ended and nothing is out

  const std::shared_ptr<CudaContext> context_;
  const uint64_t address_, offset_, span_, granularity_;
  const std::string name_;
  size_t place_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<CudaReservation> reservation_;
  Ranges ranges_;
  uint64_t mapped_ = 0;  // from the pool's begin on; never less, so that freed memory stays readable
  bool closed_ = false;
  std::optional<Error> error_;
};

}  // namespace hg
