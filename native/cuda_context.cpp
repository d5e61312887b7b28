#include "cuda_context.h"

namespace hg {

CudaContext::CudaContext(int index) : api_(CudaApi::open()) {
  const std::string doing = "opening CUDA device " + std::to_string(index);
  auto must = [&](CUresult result, const char *call) {
    if (result != CUDA_SUCCESS) throw api_->error(result, call, doing);
  };
  int count = 0;
  must(api_->cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (index < 0 || index >= count)
    throw Error("DriverError", doing, std::to_string(count) + " devices", "a device with this index",
                "choose a smaller index, or check CUDA_VISIBLE_DEVICES");
  must(api_->cuDeviceGet(&device_, index), "cuDeviceGet");
  must(api_->cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  if (CUresult result = api_->cuCtxGetId(context_, &id_); result != CUDA_SUCCESS) {
    api_->cuDevicePrimaryCtxRelease(device_);
    throw api_->error(result, "cuCtxGetId", doing);
  }
}

CudaContext::~CudaContext() {
  if (!left_.empty())
    if (CudaCurrentIfAlive current(*this); current) {
      CudaRelaxed relaxed(*this);  // a stream of this thread may be capturing
      await_work();
    }
  api_->cuDevicePrimaryCtxRelease(device_);
}

std::string CudaContext::arch() const {
  int major = 0, minor = 0;
  check(api_->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device_),
        "cuDeviceGetAttribute", "reading the architecture");
  check(api_->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device_),
        "cuDeviceGetAttribute", "reading the architecture");
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

bool CudaContext::alive() const {
  if (dead_) return false;
  unsigned long long id = 0;
  if (api_->cuCtxGetId(context_, &id) != CUDA_SUCCESS || id != id_) dead_ = true;
  return !dead_;
}

void CudaContext::note(CUresult result) const {
  if (cuda_fatal(result)) dead_ = true;
}

void CudaContext::check(CUresult result, const char *call, const char *doing) const {
  if (result == CUDA_SUCCESS) return;
  note(result);
  throw api_->error(result, call, doing);
}

CUresult CudaContext::await_work() {
  std::vector<std::function<void()>> left;
  {
    std::lock_guard lock(left_mutex_);
    left.swap(left_);  // work that uses what is left from now on may have come after this wait began
  }
  const CUresult waited = api_->cuCtxSynchronize();
  note(waited);
  if (waited == CUDA_SUCCESS) {
    CudaRelaxed relaxed(*this);  // a stream may have begun to capture
    for (const auto &give_back : left) give_back();
  } else {
    std::lock_guard lock(left_mutex_);
    left_.insert(left_.end(), left.begin(), left.end());
  }
  return waited;
}

void CudaContext::leave(std::function<void()> give_back) {
  std::lock_guard lock(left_mutex_);
  left_.push_back(std::move(give_back));
}

void CudaContext::join_captured(cuuint64_t capture) {
  std::lock_guard lock(captured_mutex_);
  ++captured_[capture].streams;
}

void CudaContext::hold_captured(cuuint64_t capture, std::shared_ptr<Function> function) {
  std::lock_guard lock(captured_mutex_);
  captured_[capture].functions.push_back(std::move(function));
}

CudaContext::Functions CudaContext::leave_captured(cuuint64_t capture) {
  std::lock_guard lock(captured_mutex_);
  const auto at = captured_.find(capture);
  if (at == captured_.end() || --at->second.streams) return {};
  return std::move(captured_.extract(at).mapped().functions);
}

CudaContext::Functions CudaContext::take_captured(cuuint64_t capture) {
  std::lock_guard lock(captured_mutex_);
  auto node = captured_.extract(capture);
  return node ? std::move(node.mapped().functions) : Functions{};
}

CudaCurrent::CudaCurrent(const CudaContext &context, const char *doing) : context_(context) {
  if (context.closed())
    throw Error("DriverError", doing, "a device that was closed", "an open device", "close a device last");
  context.check(context.api().cuCtxPushCurrent(context.handle()), "cuCtxPushCurrent", doing);
}

CudaCurrent::~CudaCurrent() {
  CUcontext popped = nullptr;
  context_.api().cuCtxPopCurrent(&popped);
}

CudaCurrentIfAlive::CudaCurrentIfAlive(const CudaContext &context)
    : context_(context),
      pushed_(context.alive() && context.api().cuCtxPushCurrent(context.handle()) == CUDA_SUCCESS) {}

CudaCurrentIfAlive::~CudaCurrentIfAlive() {
  CUcontext popped = nullptr;
  if (pushed_) context_.api().cuCtxPopCurrent(&popped);
}

CudaRelaxed::CudaRelaxed(const CudaContext &context)
    : context_(context), changed_(context.api().cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}

CudaRelaxed::~CudaRelaxed() {
  if (changed_) context_.api().cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace hg
