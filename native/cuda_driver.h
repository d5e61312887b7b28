// A CUDA device through the driver API (driver.h says what each method means).
#pragma once
#include "cuda_context.h"

namespace hg {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index);
  std::string kind() const override { return "cuda"; }
  std::string arch() const override { return context_->arch(); }
  bool alive() const override { return !context_->closed() && context_->alive(); }
  uint64_t granularity() const override;
  std::optional<uint64_t> free_bytes() const override;
  std::shared_ptr<Reservation> reserve(uint64_t address, uint64_t span) override;
  std::shared_ptr<Module> load_module(std::shared_ptr<const SealedImage> image) override;
  std::shared_ptr<Stream> create_stream() override;
  std::shared_ptr<Event> create_event() override;
  std::shared_ptr<Template> create_template() override;
  void synchronize() override;
  // The context itself goes with the last object that was created in it.
  void close() override;
  std::map<std::string, uint64_t> counters() const override;

  const std::shared_ptr<CudaContext> &context() const { return context_; }

 private:
  std::shared_ptr<CudaContext> context_;
};

}  // namespace hg
