// Templates and executables of the host device.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "driver.h"
#include "host_queue.h"
#include "host_schedule.h"

namespace hg {

class HostDevice;

// Refuses a node that this device could not run: UsageError.
void check_node(const Node &node);

// A node in the form that workers run: a kernel, or the copies of this file; empty nodes have no blocks.
struct LoweredNode {
  hg_kernel run = nullptr;
  std::vector<uint8_t> params;
  uint32_t blocks = 0;
};
LoweredNode lower(const Node &node);

class HostTemplate : public Template {
 public:
  explicit HostTemplate(std::shared_ptr<HostDevice> device);
  uint32_t add(Node node, std::span<const Edge> incoming) override;
  std::vector<Node> nodes() const override;
  std::vector<Edge> edges() const override;
  size_t node_count() const override;
  size_t edge_count() const override;
  std::shared_ptr<Executable> instantiate(uint32_t flags) override;
  std::shared_ptr<Device> device() const override;

 private:
  std::shared_ptr<HostDevice> device_;
  mutable std::mutex mutex_;  // guards both
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
};

class HostExecutable : public Executable {
 public:
  HostExecutable(std::shared_ptr<HostDevice> device, const std::vector<Node> &nodes, const std::vector<Edge> &edges,
                 uint32_t flags);
  ~HostExecutable() override;  // drains
  uint32_t flags() const override { return flags_; }
  void launch(Stream &stream) override;
  uint64_t in_flight() const override;
  void drain() override;
  uint64_t device_bytes() const override { return schedule_.bytes(); }  // counted against the memory limit
  uint64_t host_bytes() const override;

 private:
  std::shared_ptr<HostDevice> device_;
  std::vector<std::shared_ptr<Function>> functions_;  // keeps the code of the nodes
  const Schedule schedule_;
  const uint32_t flags_;
  const std::shared_ptr<Flights> flights_ = std::make_shared<Flights>();
};

}  // namespace hg
