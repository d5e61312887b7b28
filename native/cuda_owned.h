// A driver object that is destroyed in its context, also when the constructor of what holds it throws.
#pragma once
#include "cuda_context.h"

namespace hg {

template <class Handle, auto Destroy>
class CudaOwned {
 public:
  explicit CudaOwned(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~CudaOwned() {
    if (!handle_ || borrowed_) return;
    if (CudaCurrentIfAlive current(*context_); current) {
      CudaRelaxed relaxed(*context_);  // a stream of this thread may be capturing
      (context_->api().*Destroy)(handle_);
    }
  }
  CudaOwned(const CudaOwned &) = delete;
  Handle *out() { return &handle_; }
  Handle get() const { return handle_; }
  void leak() { handle_ = nullptr; }
  // Somebody else's, who destroys it.
  void borrow(Handle handle) {
    handle_ = handle;
    borrowed_ = true;
  }

 private:
  std::shared_ptr<CudaContext> context_;
  Handle handle_ = nullptr;
  bool borrowed_ = false;
};

}  // namespace hg
