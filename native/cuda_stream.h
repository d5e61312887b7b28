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
  // Work still running goes on; the driver frees the stream after it.
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
  // The number of the capture that this stream takes part in, or 0.
  cuuint64_t capture_id() const;
  void launch(const KernelNode &kernel);
  void hold(cuuint64_t capture, std::shared_ptr<Function> function);

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaContext> context_;
  CUstream stream_ = nullptr;
  const bool borrowed_ = false;
  std::mutex mutex_;
  std::set<cuuint64_t> held_;  // captures of a borrowed stream whose functions the context holds
};

// A stream's capture: the graph that it makes, or null if it does not capture, and how many nodes that has so far.
std::pair<CUgraph, size_t> capture_info(const CudaContext &context, CUstream stream);

// The CUDA stream behind a stream, or UsageError if it belongs to another device.
CudaStream &cuda_stream(Stream &stream);

}  // namespace hg
