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

  // Of the device, from the driver: its name, multiprocessors, and the dynamic shared memory that a block may opt into.
  std::string name() const;
  int processors() const;
  int shared_optin() const;
  int driver_version() const;
  int index() const { return index_; }
  // Limits of the context that can be set (core format M53 has the names); those that this device lacks are left out.
  std::map<std::string, uint64_t> limits() const;
  void set_limit(const std::string &name, uint64_t value);

  std::shared_ptr<Template> borrow_template(uint64_t graph);
  // The module of a function, also of one that somebody else loaded and keeps.
  std::shared_ptr<Module> borrow_module(const std::shared_ptr<Function> &function);
  std::shared_ptr<Stream> borrow_stream(uint64_t stream);
  // (graph, nodes so far) of a capturing stream, (0, 0) of another.
  std::pair<uint64_t, uint64_t> capture_info(uint64_t stream) const;

  const std::shared_ptr<CudaContext> &context() const { return context_; }

 private:
  int attribute(CUdevice_attribute attribute, const char *doing) const;

  std::shared_ptr<CudaContext> context_;
  const int index_;
};

}  // namespace hg
