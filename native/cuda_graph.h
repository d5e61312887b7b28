// Graphs of the CUDA driver: a template is a CUgraph, an executable a CUgraphExec.
#pragma once
#include "cuda_context.h"
#include "cuda_kernels.h"

namespace hg {

class CudaDevice;

// A driver object that is destroyed in its context, also when the constructor of what holds it throws.
template <class Handle, auto Destroy>
class CudaOwned {
 public:
  explicit CudaOwned(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~CudaOwned() {
    if (!handle_) return;
    if (CudaCurrentIfAlive current(*context_); current) (context_->api().*Destroy)(handle_);
  }
  CudaOwned(const CudaOwned &) = delete;
  Handle *out() { return &handle_; }
  Handle get() const { return handle_; }
  void leak() { handle_ = nullptr; }

 private:
  std::shared_ptr<CudaContext> context_;
  Handle handle_ = nullptr;
};

class CudaTemplate final : public Template {
 public:
  explicit CudaTemplate(std::shared_ptr<CudaDevice> device);  // empty
  // Takes over a captured graph. `functions` are those of its kernels.
  CudaTemplate(std::shared_ptr<CudaDevice> device, CUgraph graph, std::vector<std::shared_ptr<Function>> functions);
  ~CudaTemplate() override;
  uint32_t add(Node node, std::span<const Edge> incoming) override;
  std::vector<Node> nodes() const override;
  std::vector<Edge> edges() const override;
  std::shared_ptr<Executable> instantiate(uint32_t flags) override;
  std::shared_ptr<Device> device() const override;

 private:
  void depend(CUgraphNode node, std::span<const Edge> incoming);
  Node read(CUgraphNode node) const;
  KernelNode read_kernel(CUgraphNode node) const;
  MemsetNode read_memset(CUgraphNode node) const;
  MemcpyNode read_memcpy(CUgraphNode node) const;

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaContext> context_;
  mutable std::mutex mutex_;
  std::map<CUfunction, std::shared_ptr<CudaFunction>> functions_;
  CudaOwned<CUgraph, &CudaApi::cuGraphDestroy> graph_;  // goes before the modules of its functions
  std::vector<CUgraphNode> nodes_;                      // in construction order
};

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(std::shared_ptr<CudaContext> context, CUgraph graph, uint32_t flags, uint64_t nodes,
                 std::vector<std::shared_ptr<CudaFunction>> functions);
  ~CudaExecutable() override;
  uint32_t flags() const override;
  void launch(Stream &stream) override;
  uint64_t in_flight() const override;
  void drain() override;
  // What free device memory fell by, and anonymous memory of the process grew by, during the instantiation.
  uint64_t device_bytes() const override { return device_bytes_; }
  uint64_t host_bytes() const override { return host_bytes_; }

 private:
  void sweep() const;  // moves finished launches' events to idle_; a lost context has nothing in flight
  CUevent take_event();

  std::shared_ptr<CudaContext> context_;
  std::vector<std::shared_ptr<CudaFunction>> functions_;
  CudaOwned<CUgraphExec, &CudaApi::cuGraphExecDestroy> exec_;  // goes before the modules of its functions
  const uint32_t flags_;
  uint64_t nodes_, device_bytes_ = 0, host_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<CUevent> running_, idle_;  // one event a launch in flight, recorded behind it
};

}  // namespace hg
