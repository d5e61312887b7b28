// A device's primary context, held by everything that was created in it: it is given back when the last of them goes.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_api.h"
#include "driver.h"

namespace hg {

// Totals since the device was opened, and what is alive now. Names as Device::counters() gives them.
struct CudaCounters {
  std::atomic<uint64_t> templates_created{0}, templates_live{0};
  std::atomic<uint64_t> executables_created{0}, executables_live{0};
  std::atomic<uint64_t> launches{0}, nodes_run{0};  // nodes handed to the driver, by graphs and one by one
  std::atomic<uint64_t> modules_loaded{0}, modules_live{0};
  std::atomic<uint64_t> reservations_live{0}, bytes_mapped{0};
  std::atomic<uint64_t> streams_live{0}, events_live{0};
  std::atomic<uint64_t> pinned_live{0}, pinned_bytes{0};
};

class CudaContext {
 public:
  explicit CudaContext(int index);
  ~CudaContext();
  CudaContext(const CudaContext &) = delete;
  CudaContext &operator=(const CudaContext &) = delete;

  const CudaApi &api() const { return *api_; }
  CUdevice device() const { return device_; }
  CUcontext handle() const { return context_; }
  std::string arch() const;
  // False once a kernel faulted, or the context was destroyed or reset by someone in this process.
  bool alive() const;
  // Throws the error for a failed call. A fatal code marks the context dead.
  void check(CUresult result, const char *call, const char *doing) const;
  // Waits for the default stream: copies from pageable memory and fills return while they are under way there, and no
  // other stream of ours waits for it.
  void settle(const char *doing) const { check(api_->cuStreamSynchronize(nullptr), "cuStreamSynchronize", doing); }
  // Notes a result where nothing can be thrown.
  void note(CUresult result) const;
  // Waits for all work, which the driver refuses while any stream of the context captures. What was left before is then
  // given back. The context must be current.
  CUresult await_work();
  // Something went while the driver refused to wait for work that may use it: it is given back by the next wait for all
  // work, at the latest when the context goes.
  void leave(std::function<void()> give_back);
  // The device was closed: what was created may still be destroyed, everything else is refused.
  void close() { closed_ = true; }
  bool closed() const { return closed_; }

  // Functions that kernels of a running stream capture use: a capture's nodes hold their functions before there is a
  // template that could. They stay until the capture is over (take) or all streams that joined it have left.
  using Functions = std::vector<std::shared_ptr<Function>>;
  void join_captured(cuuint64_t capture);  // once a stream, before it holds
  void hold_captured(cuuint64_t capture, std::shared_ptr<Function> function);
  Functions leave_captured(cuuint64_t capture);  // those of the capture if nobody else joined it, else none
  Functions take_captured(cuuint64_t capture);

  // The function object of a handle, made by `make` unless one is still held: the same function is the same object.
  template <class Make>
  std::shared_ptr<Function> shared_function(CUfunction handle, Make &&make) {
    std::lock_guard lock(functions_mutex_);
    std::weak_ptr<Function> &known = functions_[handle];
    auto function = known.lock();
    if (!function) known = function = make();
    return function;
  }

  mutable CudaCounters counters;

 private:
  std::shared_ptr<const CudaApi> api_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  unsigned long long id_ = 0;  // unique in the process: a context that was reset and made anew has another
  mutable std::atomic<bool> dead_{false};
  std::atomic<bool> closed_{false};
  std::mutex left_mutex_;
  std::vector<std::function<void()>> left_;
  std::mutex captured_mutex_;
  struct Captured {
    size_t streams = 0;  // that joined it and have not left
    Functions functions;
  };
  std::map<cuuint64_t, Captured> captured_;
  std::mutex functions_mutex_;
  std::map<CUfunction, std::weak_ptr<Function>> functions_;  // entries of functions that went are empty
};

// Makes the context current for a scope, and whatever was current before current again. DriverError once closed.
class CudaCurrent {
 public:
  CudaCurrent(const CudaContext &context, const char *doing);
  ~CudaCurrent();
  CudaCurrent(const CudaCurrent &) = delete;
  CudaCurrent &operator=(const CudaCurrent &) = delete;

 private:
  const CudaContext &context_;
};

// For destructors: like CudaCurrent, but a dead context is no error. Test it before the first call.
class CudaCurrentIfAlive {
 public:
  explicit CudaCurrentIfAlive(const CudaContext &context);
  ~CudaCurrentIfAlive();
  CudaCurrentIfAlive(const CudaCurrentIfAlive &) = delete;
  CudaCurrentIfAlive &operator=(const CudaCurrentIfAlive &) = delete;
  explicit operator bool() const { return pushed_; }

 private:
  const CudaContext &context_;
  bool pushed_;
};

// While it lives, this thread may make calls that would otherwise break a capture under way: mapping memory, waiting
// for copies. The context must be current. It never throws; a driver that refuses leaves the mode as it was.
class CudaRelaxed {
 public:
  explicit CudaRelaxed(const CudaContext &context);
  ~CudaRelaxed();
  CudaRelaxed(const CudaRelaxed &) = delete;
  CudaRelaxed &operator=(const CudaRelaxed &) = delete;

 private:
  const CudaContext &context_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool changed_;
};

}  // namespace hg
