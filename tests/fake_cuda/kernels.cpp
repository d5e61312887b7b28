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

const Function *function_of(const Node &node) {
  const auto at = state().functions.find(node.function);
  return at == state().functions.end() ? nullptr : &at->second;
}

// The kernels of native/host/kernels/probe.cpp whose own way to do things would not do here.
struct Spin {
  uint64_t counter, microseconds;
};
struct Fault {
  uint64_t address, kind;
};
struct Gate {
  uint64_t open, counter;
};

// The word that a kernel waits for, or 0 if it waits for none.
uint64_t waits_for(const Node &node) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return 0;
  const Function *function = function_of(node);
  if (!function || !function->host || function->name != "gate") return 0;
  const uint64_t word = argument<Gate>(node, 0).open;
  const bool closed = accessible(word, 4, false) == CUDA_SUCCESS && *reinterpret_cast<const uint32_t *>(word) == 0;
  return closed ? word : 0;
}

CUresult run_kernel(const Node &node) {
  const Function *function = function_of(node);
  if (!function) {
    misuse("a kernel ran after its module was unloaded");
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  note("kernel " + function->name);
  if (const auto fault = state().faulting_kernels.find(function->name); fault != state().faulting_kernels.end())
    return fault->second;
  if (!function->host) return CUDA_SUCCESS;
  for (uint32_t i = 0; i < function->host->pointer_count; ++i) {
    uint64_t address = 0;
    std::memcpy(&address, node.arguments[0].data() + function->host->pointer_offsets[i], sizeof address);
    if (address && accessible(address, 1, false) != CUDA_SUCCESS) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  if (function->name == "fault" && argument<Fault>(node, 0).kind) return CUDA_ERROR_ILLEGAL_INSTRUCTION;
  const uint32_t blocks = node.grid[0] * node.grid[1] * node.grid[2];
  if (function->name == "spin") {  // its time has passed already
    Spin spin = argument<Spin>(node, 0);
    spin.microseconds = 0;
    function->host->run(&spin, 0, blocks);
  } else {
    function->host->run(node.arguments[0].data(), 0, blocks);
  }
  return CUDA_SUCCESS;
}

}  // namespace

std::chrono::microseconds duration(const Node &node) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return std::chrono::microseconds{0};
  const Function *function = function_of(node);
  if (function && function->host && function->name == "spin")
    return std::chrono::microseconds{argument<Spin>(node, 0).microseconds};
  return state().kernel_time;
}

Time enqueue(Context *context, Time start, const Node &node) {
  const uint64_t word = waits_for(node);
  const auto long_enough = std::chrono::hours{1};
  const auto takes = word ? std::chrono::microseconds{long_enough} : duration(node);
  const Time begin = std::max(start, Clock::now());
  const Time done = enqueue(context, begin, takes, [node] { return run(node); });
  if (word) state().gates.push_back({begin, done, word});
  return done;
}

CUresult run(const Node &node) {
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return run_kernel(node);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS &p = node.memset;
      note("memset");
      for (size_t row = 0; row < p.height; ++row) {
        const uint64_t at = p.dst + row * p.pitch, size = p.width * p.elementSize;
        if (CUresult denied = accessible(at, size, true); denied != CUDA_SUCCESS) return denied;
        for (uint64_t byte = 0; byte < size; byte += p.elementSize)
          std::memcpy(reinterpret_cast<void *>(at + byte), &p.value, p.elementSize);
      }
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
