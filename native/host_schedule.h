// A graph compiled for a number of workers: what they run, in which order, and where they wait for each other. Pure:
// no thread, no device.
//
// A node lies in the step after the last step of the nodes it depends on, so nodes without a path between them share
// a step. A step is cut into chunks; any worker may run any chunk. Chunks are numbered over the whole schedule in
// step order and a chunk may start when all chunks of earlier steps are done, so one counter of finished chunks is
// all that workers wait for. Consecutive steps of one chunk each become one chunk that runs its nodes in a row: a
// chain of small nodes has no barrier inside.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "driver.h"
#include "host/kernel_abi.h"

namespace hg {

struct ScheduledNode {
  hg_kernel run;
  std::span<const uint8_t> params;
  uint32_t blocks;  // 0: nothing to run, it only carries order
};

struct Operation {  // some blocks of one node
  hg_kernel run;
  const void *params;
  uint32_t first, last;
  uint32_t node;
};

struct Chunk {  // operations that one worker runs in a row
  uint32_t first, end;  // in Schedule::operations
  uint32_t after;       // chunks that must be done before
  uint32_t step_end;    // chunks that are done when this step is
};

struct Schedule {
  std::vector<Operation> operations;
  std::vector<Chunk> chunks;
  std::vector<std::max_align_t> params;  // of all nodes, each aligned
  uint32_t nodes = 0;

  uint64_t bytes() const {
    return operations.size() * sizeof(Operation) + chunks.size() * sizeof(Chunk) +
           params.size() * sizeof(std::max_align_t);
  }
};

Schedule make_schedule(std::span<const ScheduledNode> nodes, std::span<const Edge> edges, uint32_t workers);

// The same schedule with one node's kernel replaced. It shares the parameters of the first, which must outlive it.
Schedule with_kernel(const Schedule &schedule, uint32_t node, hg_kernel run);

}  // namespace hg
