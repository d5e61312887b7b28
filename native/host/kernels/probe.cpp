// Kernels of the conformance suite and the launch benchmark.
#include "kernel_abi.h"
namespace {
struct Count { uint64_t *counter; };
void count(const void *params, uint32_t first, uint32_t last) {
  const Count &p = *static_cast<const Count *>(params);
  __atomic_fetch_add(p.counter, last - first, __ATOMIC_RELAXED);
}
constexpr uint32_t kFirst[] = {0};
const hg_function kFunctions[] = {{"count", count, sizeof(Count), 1, kFirst}};
}  // namespace
extern "C" __attribute__((visibility("default"))) const hg_module heliograph_module = {
    HG_KERNEL_ABI, 1, "probe", HG_LEVEL, kFunctions};
