// Host memory that a CUDA device copies from and to in stream order, and what keeps memory while it does.
#pragma once
#include <deque>

#include "cuda_context.h"

namespace hg {

class CudaEvent;

// Copies that were submitted and may not be done: one event each, which its stream reaches after the copy. Pinned
// memory drains them before it goes. (A reservation waits for its whole context, since kernels use it as well.)
class CopiesUnderWay {
 public:
  void forget_done();
  void add(std::shared_ptr<CudaEvent> done);  // recorded already: one that is not counts as done
  void add_unmarked();                        // one without an event, for which nobody could wait
  // Waits for all of them. The context must be current. It never throws: after a fault nothing is under way. False where
  // the driver refused to wait: a copy may still be under way.
  bool drain(const CudaContext &context) noexcept;

 private:
  std::mutex mutex_;
  bool unmarked_ = false;
  std::deque<std::shared_ptr<CudaEvent>> events_;
};

class PinnedMemory {  // page-locked, known to every context of the process
 public:
  PinnedMemory(std::shared_ptr<CudaContext> context, uint64_t size);
  ~PinnedMemory();  // waits for its copies; stays for the rest of the process where the driver refuses to wait
  PinnedMemory(const PinnedMemory &) = delete;
  PinnedMemory &operator=(const PinnedMemory &) = delete;

  uint8_t *data() const { return data_; }
  uint64_t size() const { return size_; }
  const std::shared_ptr<CudaContext> &context() const { return context_; }
  CopiesUnderWay &copies() const { return copies_; }
  void check_range(uint64_t at, uint64_t size, const char *doing) const;

 private:
  std::shared_ptr<CudaContext> context_;
  uint64_t size_;
  uint8_t *data_ = nullptr;
  mutable CopiesUnderWay copies_;
};

}  // namespace hg
