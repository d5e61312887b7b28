// A graph compiled for a number of workers: what they run, in which order, and where they wait for each other. Pure:
// no thread, no device.
//
// A node lies in the step after the last step of the nodes it depends on, so nodes without a path between them share
// a step. A step is cut into chunks, each of them the share of one worker, but any worker may run any chunk. A step may
// begin when all chunks of the steps before it are done. Consecutive steps of one chunk become one chunk that runs its
// nodes in a row: a chain of small nodes has no barrier inside.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
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
};

struct Schedule {
  std::vector<Operation> operations;
  std::vector<Chunk> chunks;    // by step, then by the worker whose share they are
  std::vector<uint32_t> bounds;  // [steps * workers + 1] first chunk of each worker's share of each step
  std::vector<std::max_align_t> params;  // of all nodes, each aligned
  uint32_t workers = 1;
  uint32_t nodes = 0;

  uint32_t steps() const { return uint32_t((bounds.size() - 1) / workers); }
  uint32_t begin(uint32_t step) const { return bounds[size_t(step) * workers]; }
  uint32_t end(uint32_t step) const { return bounds[(size_t(step) + 1) * workers]; }
  // Where a worker's share of a step begins; that of the worker after the last is where the step ends.
  uint32_t share(uint32_t step, uint32_t worker) const { return bounds[size_t(step) * workers + worker]; }

  uint64_t bytes() const {
    return operations.size() * sizeof(Operation) + chunks.size() * sizeof(Chunk) + bounds.size() * sizeof(uint32_t) +
           params.size() * sizeof(std::max_align_t);
  }
};

Schedule make_schedule(std::span<const ScheduledNode> nodes, std::span<const Edge> edges, uint32_t workers);

// The same schedule with one node's kernel replaced. It shares the parameters of the first, which must outlive it.
Schedule with_kernel(const Schedule &schedule, uint32_t node, hg_kernel run);

}  // namespace hg
