// Kernel images loaded into a CUDA context, and the functions in them.
#pragma once
#include "cuda_context.h"

namespace hg {

class CudaModule final : public Module {
 public:
  CudaModule(std::shared_ptr<CudaContext> context, std::shared_ptr<const SealedImage> image);
  // A module that somebody else loaded and keeps, for its variables.
  CudaModule(std::shared_ptr<CudaContext> context, CUmodule borrowed);
  ~CudaModule() override;
  uint32_t abi() const override { return 0; }
  std::string family() const override { return {}; }
  std::string level() const override { return context_->arch(); }
  std::vector<std::string> function_names() const override;
  std::shared_ptr<Function> function(const std::string &name) override;
  std::pair<uint64_t, uint64_t> global_address(const std::string &name) const override;
  std::vector<uint8_t> read_global(const std::string &name) const override;
  void write_global(const std::string &name, std::span<const uint8_t> data) override;
  CUmodule handle() const { return module_; }

 private:
  std::shared_ptr<CudaContext> context_;
  std::string label() const;

  std::shared_ptr<const SealedImage> image_;  // null: borrowed
  CUmodule module_ = nullptr;
};

using FunctionAttribute = std::pair<uint32_t, int64_t>;

class CudaFunction final : public Function {
 public:
  // A function of a module of ours, or (module null) of one that somebody else loaded and keeps. `kernel` is the handle
  // that all contexts share, where there is one.
  CudaFunction(std::shared_ptr<CudaContext> context, std::shared_ptr<CudaModule> module, CUfunction handle,
               CUkernel kernel, std::string name);
  const std::string &name() const override { return name_; }
  uint32_t param_bytes() const override { return param_bytes_; }
  std::span<const uint32_t> pointer_offsets() const override { return {}; }
  std::vector<Param> params() const override { return params_; }
  std::shared_ptr<Module> module() const override { return module_; }
  uint64_t local_bytes() const override;
  // What is set on the function, or on the kernel if that is more: cuDNN and cuBLAS set limits on the kernel only.
  std::vector<FunctionAttribute> attributes() const override;
  void raise_attributes(std::span<const FunctionAttribute> attributes) override;

  const std::shared_ptr<CudaContext> &context() const { return context_; }
  CUfunction handle() const { return handle_; }
  CUkernel kernel() const { return kernel_; }  // may be null
  void learn(CUkernel kernel) { if (kernel) kernel_ = kernel; }  // a node told it
  // Raises what a node with this launch needs: dynamic shared memory, consent to clusters of more than 8 blocks.
  void allow(const KernelNode &node);
  // Pointers to each parameter inside `bytes`, the array form of kernel parameters. UsageError if the size is not
  // param_bytes().
  std::vector<void *> arguments(std::span<uint8_t> bytes) const;
  // The parameters that an array of pointers leads to, at their offsets; padding is zero.
  std::vector<uint8_t> gather(void *const *arguments) const;
  // Likewise from one buffer. CaptureError if it is shorter than the parameters.
  std::vector<uint8_t> gather(std::span<const uint8_t> buffer) const;

  // The node attributes that the driver reports for a node of this function to which nothing was done, by id: what
  // attributes of other nodes are compared with. Ids that the driver does not know are left out. Asked with a node of
  // the function and its launch.
  using Plain = std::map<uint32_t, std::array<uint8_t, 64>>;
  std::shared_ptr<const Plain> plain(const KernelNode &like, CUgraphNode node) const;

 private:
  std::optional<int> get(uint32_t id) const;  // nothing where this driver or device does not have it
  void raise(uint32_t id, int64_t value);

  std::shared_ptr<CudaContext> context_;
  std::shared_ptr<CudaModule> module_;
  CUfunction handle_;
  std::atomic<CUkernel> kernel_;
  std::string name_;
  std::vector<Param> params_;
  uint32_t param_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Plain> plain_;
};

// The CUDA function of a node, or UsageError if it belongs to another device.
std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<Function> &function);

// The function with these handles, of which one may be null: one of ours that is still held, else one of somebody
// else's. Asking twice gives the same object for as long as it is held.
std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<CudaContext> &context, CUfunction function,
                                            CUkernel kernel);

}  // namespace hg
