// What a piece of work does to memory, and how long it takes.
#include <cstring>

#include "state.h"

namespace fake {
namespace {

template <class T>
T argument(const Node &node, size_t index) {
  T value{};
  std::memcpy(&value, node.arguments[index].data(), std::min(sizeof value, node.arguments[index].size()));
  return value;
}

const std::string *kernel_name(const Node &node) {
  const auto at = state().functions.find(node.function);
  return at == state().functions.end() ? nullptr : &at->second.name;
}

CUresult run_kernel(const Node &node) {
  const std::string *name = kernel_name(node);
  if (!name) {
    misuse("a kernel ran after its module was unloaded");
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  note("kernel " + *name);
  if (const auto fault = state().faulting_kernels.find(*name); fault != state().faulting_kernels.end())
    return fault->second;
  if (*name == "count") {  // adds the number of blocks to a 64-bit counter
    const auto address = argument<uint64_t>(node, 0);
    if (CUresult denied = accessible(address, 8, true); denied != CUDA_SUCCESS) return denied;
    *reinterpret_cast<uint64_t *>(address) += uint64_t(node.grid[0]) * node.grid[1] * node.grid[2];
  }
  return CUDA_SUCCESS;
}

}  // namespace

std::chrono::microseconds duration(const Node &node) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return std::chrono::microseconds{0};
  const std::string *name = kernel_name(node);
  if (name && *name == "spin") return std::chrono::microseconds{argument<uint32_t>(node, 0)};
  return state().kernel_time;
}

CUresult run(const Node &node) {
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return run_kernel(node);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS &p = node.memset;
      note("memset");
      if (CUresult denied = accessible(p.dst, p.width, true); denied != CUDA_SUCCESS) return denied;
      std::memset(reinterpret_cast<void *>(p.dst), static_cast<int>(p.value), p.width);
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const CUDA_MEMCPY3D &p = node.copy;
      note("memcpy");
      if (CUresult denied = accessible(p.srcDevice, p.WidthInBytes, false); denied != CUDA_SUCCESS) return denied;
      if (CUresult denied = accessible(p.dstDevice, p.WidthInBytes, true); denied != CUDA_SUCCESS) return denied;
      std::memmove(reinterpret_cast<void *>(p.dstDevice), reinterpret_cast<const void *>(p.srcDevice), p.WidthInBytes);
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_SUCCESS;
  }
}

}  // namespace fake
