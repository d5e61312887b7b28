// Streams and events of a CUDA context. Streams do not wait for the legacy default stream.
#pragma once
#include <set>

#include "cuda_context.h"

namespace hg {

class CudaDevice;

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(std::shared_ptr<CudaContext> context);
  ~CudaEvent() override;
  void synchronize() override;
  bool query() const override;
  CUevent handle() const { return event_; }

 private:
  std::shared_ptr<CudaContext> context_;
  CUevent event_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaDevice> device);
  // A stream that somebody else owns: it is never destroyed here. Functions launched into a capture of it are held
  // until the capture is ended here or this object goes: keep it until the captured graph has been borrowed.
  CudaStream(std::shared_ptr<CudaDevice> device, CUstream borrowed);
  // Work still running goes on; the driver frees the stream after it. A capture that it began ends with it.
  ~CudaStream() override;
  void submit(Node node) override;
  void record(const std::shared_ptr<Event> &event) override;
  void wait(const std::shared_ptr<Event> &event) override;
  void synchronize() override;
  bool query() const override;
  // Thread-local mode: calls by other threads that would break a capture are let through.
  void begin_capture() override;
  std::shared_ptr<Template> end_capture() override;
  bool capturing() const override;

  CUstream handle() const { return stream_; }
  const std::shared_ptr<CudaContext> &context() const { return context_; }

 private:
  // The number of the active capture that this stream takes part in, or 0: one that was invalidated has none.
  cuuint64_t capture_id() const;
  CUstreamCaptureStatus capture_status(cuuint64_t *id = nullptr) const;
  void launch(const KernelNode &kernel);
  void join(cuuint64_t capture);

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaContext> context_;
  CUstream stream_ = nullptr;
  const bool borrowed_ = false;
  std::mutex mutex_;
  std::set<cuuint64_t> joined_;  // captures that began here or into which functions were launched: the context holds those
  std::atomic<cuuint64_t> begun_{0};  // the capture that began here; its number is not told after it failed
};

// A stream's capture: the graph that it makes, or null if it does not capture, and how many nodes that has so far.
std::pair<CUgraph, size_t> capture_info(const CudaContext &context, CUstream stream);

// The CUDA stream behind a stream, or UsageError if it belongs to another device.
CudaStream &cuda_stream(Stream &stream);

}  // namespace hg
