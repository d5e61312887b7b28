#include "cuda_pinned.h"

#include "cuda_stream.h"
#include "text.h"

namespace hg {

void CopiesUnderWay::forget_done() {
  std::lock_guard lock(mutex_);
  while (!events_.empty() && events_.front()->query()) events_.pop_front();
}

void CopiesUnderWay::add(std::shared_ptr<CudaEvent> done) {
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(done));
}

void CopiesUnderWay::add_unmarked() {
  std::lock_guard lock(mutex_);
  unmarked_ = true;
}

bool CopiesUnderWay::drain(const CudaContext &context) noexcept {
  std::deque<std::shared_ptr<CudaEvent>> events;
  bool unmarked = false;
  {
    std::lock_guard lock(mutex_);
    events.swap(events_);
    std::swap(unmarked, unmarked_);
  }
  bool waited = true;
  auto wait = [&](CUresult result) {
    context.note(result);
    waited &= result == CUDA_SUCCESS;
  };
  for (const auto &event : events) wait(context.api().cuEventSynchronize(event->handle()));
  if (unmarked) wait(context.api().cuCtxSynchronize());
  return waited || !context.alive();
}

PinnedMemory::PinnedMemory(std::shared_ptr<CudaContext> context, uint64_t size)
    : context_(std::move(context)), size_(size) {
  const char *doing = "allocating pinned memory";
  if (!size) throw Error("UsageError", doing, "0 bytes", "at least one byte", "state a size");
  CudaCurrent current(*context_, doing);
  CudaRelaxed relaxed(*context_);
  void *data = nullptr;
  context_->check(context_->api().cuMemHostAlloc(&data, size, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc", doing);
  data_ = static_cast<uint8_t *>(data);
  ++context_->counters.pinned_live;
  context_->counters.pinned_bytes += size;
}

PinnedMemory::~PinnedMemory() {
  if (CudaCurrentIfAlive current(*context_); current) {
    CudaRelaxed relaxed(*context_);  // memory may go while another stream of this thread captures
    bool drained = true;
    // holds: R4 tests/device/test_cuda_pinned.py::test_dropped_pinned_memory_waits_for_its_copy
    drained = copies_.drain(*context_);
    // holds: R4 tests/device/test_cuda_captures.py::test_pinned_memory_whose_copy_cannot_be_waited_for_is_kept
    if (!drained) return;
    context_->api().cuMemFreeHost(data_);
  }
  --context_->counters.pinned_live;
  context_->counters.pinned_bytes -= size_;
}

void PinnedMemory::check_range(uint64_t at, uint64_t size, const char *doing) const {
  if (at > size_ || size > size_ - at)
    throw Error("UsageError", doing, text("offset ", at, ", size ", size),
                text("a range inside the ", size_, " bytes of pinned memory"), "correct the range");
}

}  // namespace hg
