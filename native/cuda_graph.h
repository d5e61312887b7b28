// Graphs of the CUDA driver: a template is a CUgraph, an executable a CUgraphExec.
#pragma once
#include "cuda_flatten.h"
#include "cuda_kernels.h"
#include "cuda_owned.h"

namespace hg {

class CudaDevice;

class CudaTemplate final : public Template {
 public:
  explicit CudaTemplate(std::shared_ptr<CudaDevice> device);  // empty
  // Takes over a captured graph. `functions` are those of its kernels.
  CudaTemplate(std::shared_ptr<CudaDevice> device, CUgraph graph, std::vector<std::shared_ptr<Function>> functions);
  // A graph that somebody else made, owns and keeps for as long as this and all executables live. Read flattened
  // (cuda_flatten.h); executables are made of the graph as it is; nothing can be added.
  static std::shared_ptr<CudaTemplate> borrow(std::shared_ptr<CudaDevice> device, CUgraph graph);
  ~CudaTemplate() override;
  uint32_t add(Node node, std::span<const Edge> incoming) override;
  std::vector<Node> nodes() const override;
  std::vector<Edge> edges() const override;
  size_t node_count() const override;
  std::vector<uint32_t> top_level() const override;
  std::shared_ptr<Executable> instantiate(uint32_t flags) override;
  std::shared_ptr<Device> device() const override;

 private:
  struct Borrowed {};
  CudaTemplate(Borrowed, std::shared_ptr<CudaDevice> device, CUgraph graph);
  void depend(CUgraphNode node, std::span<const Edge> incoming);
  Node read(uint32_t top, CUgraphNode node, CUgraphNodeType type) const;

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaContext> context_;
  mutable std::mutex mutex_;
  mutable std::map<CUfunction, std::shared_ptr<CudaFunction>> functions_;
  CudaOwned<CUgraph, &CudaApi::cuGraphDestroy> graph_;  // goes before the modules of its functions
  std::vector<CUgraphNode> nodes_;                      // in construction order; of one's own graph
  std::optional<FlatGraph> flat_;                       // of a borrowed one
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
  uint64_t handle() override;

 private:
  struct Launch {
    uint64_t number;  // in the order in which launches were submitted, from 1
    CUevent event;    // recorded behind it; null if that failed, and nobody could wait: only all work tells it is over
  };
  void sweep() const;  // moves finished launches' events to idle_; a lost context has nothing in flight
  CUevent take_event();

  std::shared_ptr<CudaContext> context_;
  std::vector<std::shared_ptr<CudaFunction>> functions_;
  CudaOwned<CUgraphExec, &CudaApi::cuGraphExecDestroy> exec_;  // goes before the modules of its functions
  const uint32_t flags_;
  uint64_t nodes_, device_bytes_ = 0, host_bytes_ = 0;
  mutable std::mutex mutex_;
  uint64_t launched_ = 0;
  mutable std::vector<Launch> running_;  // in flight, ascending
  mutable std::vector<CUevent> idle_;
  std::atomic<bool> lent_{false};  // somebody has the handle, and may launch what is not in running_
};

}  // namespace hg
