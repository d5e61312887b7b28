#include "cuda_pool.h"

#include "text.h"

namespace hg {
namespace {

constexpr uint64_t kUnit = 512;  // PyTorch's own alignment
constexpr uint64_t kGap = 256;   // BUFFER_ALIGNMENT: two pieces never touch

struct Places {
  std::mutex mutex;
  std::array<std::shared_ptr<CudaPool>, CudaPool::kPlaces> pools;
};
Places &places() {
  static auto *all = new Places;  // never destroyed: PyTorch may free memory while the process exits
  return *all;
}

std::shared_ptr<CudaPool> pool_at(size_t place) {
  std::lock_guard lock(places().mutex);
  return places().pools[place];
}

void *allocate_at(size_t place, ssize_t size, int device) noexcept {
  const auto pool = pool_at(place);
  return pool ? pool->allocate(size, device) : nullptr;
}

void free_at(size_t place, void *piece) noexcept {
  if (const auto pool = pool_at(place)) pool->free(piece);
}

}  // namespace
}  // namespace hg

// Also found by name, for callers that open this library as PyTorch does.
#define HG_POOL_PLACE(n)                                                                                      \
  extern "C" __attribute__((visibility("default"))) void *heliograph_pool_alloc_##n(ssize_t size, int device, \
                                                                                    void *) noexcept {        \
    return hg::allocate_at(n, size, device);                                                                  \
  }                                                                                                           \
  extern "C" __attribute__((visibility("default"))) void heliograph_pool_free_##n(void *piece, ssize_t, int,  \
                                                                                  void *) noexcept {          \
    hg::free_at(n, piece);                                                                                    \
  }
HG_POOL_PLACE(0)
HG_POOL_PLACE(1)
HG_POOL_PLACE(2)
HG_POOL_PLACE(3)
#undef HG_POOL_PLACE

namespace hg {
namespace {

struct Pair {
  void *(*alloc)(ssize_t, int, void *) noexcept;
  void (*free)(void *, ssize_t, int, void *) noexcept;
};
constexpr Pair kPairs[CudaPool::kPlaces] = {{heliograph_pool_alloc_0, heliograph_pool_free_0},
                                            {heliograph_pool_alloc_1, heliograph_pool_free_1},
                                            {heliograph_pool_alloc_2, heliograph_pool_free_2},
                                            {heliograph_pool_alloc_3, heliograph_pool_free_3}};

}  // namespace

CudaPool::CudaPool(std::shared_ptr<CudaReservation> reservation, uint64_t offset, uint64_t span, std::string name)
    : context_(reservation->context()), address_(reservation->address() + offset), offset_(offset), span_(span),
      granularity_(cuda_granularity(*context_)), name_(std::move(name)), reservation_(std::move(reservation)),
      ranges_(span, kUnit, kGap) {
  if (offset % granularity_ || span % granularity_ || !span || offset > reservation_->span() ||
      span > reservation_->span() - offset)
    throw Error("UsageError", "making pool " + name_, text("offset ", offset, ", span ", span),
                text("multiples of ", granularity_, " inside the ", reservation_->span(), " bytes reserved"),
                "correct the range");
}

std::shared_ptr<CudaPool> CudaPool::open(std::shared_ptr<Reservation> reservation, uint64_t offset, uint64_t span,
                                         std::string name) {
  const std::string doing = "making pool " + name;
  cuda_reservation(*reservation, doing.c_str());
  auto pool = std::make_shared<CudaPool>(std::static_pointer_cast<CudaReservation>(std::move(reservation)), offset,
                                         span, std::move(name));
  std::string names;
  std::lock_guard lock(places().mutex);
  for (size_t place = 0; place < kPlaces; ++place) {
    auto &taken = places().pools[place];
    if (!taken) {
      pool->place_ = place;
      // holds: R4 tests/device/test_cuda_pool.py::test_memory_of_a_dropped_pool_stays_until_its_last_piece_is_freed
      taken = pool;
      return pool;
    }
    append(names, (place ? ", " : "") + taken->name());
  }
  throw Error("UsageError", doing, text(kPlaces, " pools (", names, ")"), text("at most ", kPlaces, " at a time"),
              "close a pool, and free all memory of it");
}

uint64_t CudaPool::alloc_address() const { return reinterpret_cast<uint64_t>(kPairs[place_].alloc); }
uint64_t CudaPool::free_address() const { return reinterpret_cast<uint64_t>(kPairs[place_].free); }

uint64_t CudaPool::peak() const {
  std::lock_guard lock(mutex_);
  return ranges_.peak();
}

uint64_t CudaPool::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  return mapped_;
}

std::vector<std::pair<uint64_t, uint64_t>> CudaPool::live() const {
  std::lock_guard lock(mutex_);
  auto out = ranges_.taken();
  for (auto &[at, size] : out) at += address();
  return out;
}

std::optional<Error> CudaPool::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void CudaPool::close() { end(false); }
void CudaPool::leave() { end(true); }

void CudaPool::end(bool hold) {
  std::shared_ptr<CudaReservation> dropped;  // let go of without the lock
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (!hold) dropped = std::move(reservation_);
  }
  give_place_back();
}

void CudaPool::give_place_back() {
  {
    std::lock_guard lock(mutex_);
    if (!closed_ || !ranges_.empty()) return;
  }
  std::shared_ptr<CudaPool> self;  // likewise: it outlives the lock
  std::lock_guard lock(places().mutex);
  if (places().pools[place_].get() == this) self = std::move(places().pools[place_]);
}

uint64_t CudaPool::take(ssize_t size, int device) {
  const std::string doing = text("allocating ", static_cast<int64_t>(size), " bytes of pool ", name_);
  if (closed_)
    throw Error("UsageError", doing, "a pool that was closed", "an open one", "close a pool last");
  if (size <= 0 || device != context_->device())
    throw Error("UsageError", doing, text("device ", device), text("at least one byte on device ",
                context_->device()), "use the pool on the device that it was made for");
  const auto offset = ranges_.take(static_cast<uint64_t>(size));
  if (!offset)
    throw Error("OutOfMemoryError", doing, text(span_, " bytes in all, of which ", ranges_.peak(), " were in use"),
                "room in the pool's span", "capture fewer or smaller buckets");
  // Read by no other thread yet, and whole granules: what it covers of a later piece is backed for that one too.
  const uint64_t end = (*offset + static_cast<uint64_t>(size) + granularity_ - 1) / granularity_ * granularity_;
  if (end > mapped_) {
    try {
      CudaCurrent current(*context_, doing.c_str());
      CudaRelaxed relaxed(*context_);
      // Not zeroed: that is a synchronous call, which breaks a capture. PyTorch expects no zeroes.
      reservation_->map(offset_ + mapped_, end - mapped_, {.exportable = false, .zeroed = false});
    } catch (...) {
      ranges_.give(*offset);
      throw;
    }
    mapped_ = end;
  }
  return address() + *offset;
}

void *CudaPool::allocate(ssize_t size, int device) noexcept {
  std::lock_guard lock(mutex_);
  try {
    return reinterpret_cast<void *>(take(size, device));
  } catch (const Error &error) {
    error_ = error;
  } catch (const std::exception &error) {
    error_ = Error("OutOfMemoryError", "allocating from pool " + name_, error.what(), "memory of the host",
                   "free some of it");
  }
  return nullptr;
}

void CudaPool::free(void *piece) noexcept {
  if (!piece) return;
  const uint64_t at = reinterpret_cast<uint64_t>(piece);
  {
    std::lock_guard lock(mutex_);
    if (!ranges_.give(at - address()))
      error_ = Error("UsageError", "freeing memory of pool " + name_, hex(at), "an address that the pool handed out",
                     "free each piece once, through the allocator that it came from");
  }
  give_place_back();
}

}  // namespace hg
