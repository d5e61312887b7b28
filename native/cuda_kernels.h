// Kernel images loaded into a CUDA context, and the functions in them.
#pragma once
#include "cuda_context.h"

namespace hg {

class CudaModule final : public Module {
 public:
  CudaModule(std::shared_ptr<CudaContext> context, std::shared_ptr<const SealedImage> image);
  ~CudaModule() override;
  uint32_t abi() const override { return 0; }
  std::string family() const override { return {}; }
  std::string level() const override { return context_->arch(); }
  std::vector<std::string> function_names() const override;
  std::shared_ptr<Function> function(const std::string &name) override;

 private:
  std::shared_ptr<CudaContext> context_;
  std::shared_ptr<const SealedImage> image_;
  CUmodule module_ = nullptr;
};

// A parameter as the driver lays it out in the kernel's parameter space.
struct CudaParam {
  size_t offset, size;
};

class CudaFunction final : public Function {
 public:
  CudaFunction(std::shared_ptr<CudaModule> module, CUfunction handle, std::string name,
               std::vector<CudaParam> params);
  const std::string &name() const override { return name_; }
  uint32_t param_bytes() const override { return param_bytes_; }
  std::span<const uint32_t> pointer_offsets() const override { return {}; }
  std::shared_ptr<Module> module() const override { return module_; }

  CUfunction handle() const { return handle_; }
  // Pointers to each parameter inside `bytes`, the array form of kernel parameters. DriverError if the size is not
  // param_bytes().
  std::vector<void *> arguments(std::span<uint8_t> bytes) const;
  // The parameters that an array of pointers leads to, at their offsets; padding is zero.
  std::vector<uint8_t> gather(void *const *arguments) const;

 private:
  std::shared_ptr<CudaModule> module_;
  CUfunction handle_;
  std::string name_;
  std::vector<CudaParam> params_;
  uint32_t param_bytes_ = 0;
};

// The CUDA function of a node, or UsageError if it belongs to another device.
std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<Function> &function);

}  // namespace hg
