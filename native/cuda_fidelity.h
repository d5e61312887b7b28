// What of a graph is kept, and what is refused: one row for every node type, kernel node attribute, edge type, edge
// port and instantiation flag that the pinned header knows. docs/cuda-nodes.md is this table; a test compares both with
// the header. An id that is not here is refused.
#pragma once
#include <cstdint>

namespace hg {

enum class Aspect : uint8_t { node, attribute, edge, port, flag };

struct FidelityRow {
  Aspect aspect;
  uint32_t id;
  const char *name;
  bool kept;
  uint32_t bytes;  // of a kept attribute: its members, from the first byte of the value on
  const char *how;  // how it is kept, or why it is refused
};

inline constexpr FidelityRow kFidelity[] = {
    {Aspect::node, 0, "KERNEL", true, 0, "launch, parameters in the form they had, attributes"},
    {Aspect::node, 1, "MEMCPY", true, 0, "one row between device addresses; rows, arrays and host memory are refused"},
    {Aspect::node, 2, "MEMSET", true, 0, "element, value, width, height and pitch"},
    {Aspect::node, 3, "HOST", false, 0, "it calls a function of the capturing process"},
    {Aspect::node, 4, "GRAPH", true, 0, "its nodes take its place: edges into it lead to its roots, edges out of it from its leaves"},
    {Aspect::node, 5, "EMPTY", true, 0, "as it is"},
    {Aspect::node, 6, "WAIT_EVENT", true, 0, "an empty node behind the one that records the event; refused if nothing in the graph does"},
    {Aspect::node, 7, "EVENT_RECORD", true, 0, "an empty node before those that wait for the event; refused if nothing in the graph does"},
    {Aspect::node, 8, "EXT_SEMAS_SIGNAL", false, 0, "the semaphore belongs to another API"},
    {Aspect::node, 9, "EXT_SEMAS_WAIT", false, 0, "the semaphore belongs to another API"},
    {Aspect::node, 10, "MEM_ALLOC", false, 0, "the driver chooses the address of the memory at each launch"},
    {Aspect::node, 11, "MEM_FREE", false, 0, "it frees memory whose address the driver chose"},
    {Aspect::node, 12, "BATCH_MEM_OP", false, 0, "it waits for or signals someone outside the graph"},
    {Aspect::node, 13, "CONDITIONAL", false, 0, "its handle belongs to one graph of one process"},

    {Aspect::attribute, 0, "IGNORE", false, 0, "no attribute: an entry that is skipped"},
    {Aspect::attribute, 1, "ACCESS_POLICY_WINDOW", true, 28, "address, size, hit ratio, hit and miss property"},
    {Aspect::attribute, 2, "COOPERATIVE", true, 4, "as it is"},
    {Aspect::attribute, 3, "SYNCHRONIZATION_POLICY", false, 0, "of streams only: how the host waits"},
    {Aspect::attribute, 4, "CLUSTER_DIMENSION", true, 12, "with the function's consent to more than 8 blocks where needed"},
    {Aspect::attribute, 5, "CLUSTER_SCHEDULING_POLICY_PREFERENCE", true, 4, "as it is"},
    {Aspect::attribute, 6, "PROGRAMMATIC_STREAM_SERIALIZATION", false, 0, "of launches only: a capture makes a programmatic edge of it, which is kept"},
    {Aspect::attribute, 7, "PROGRAMMATIC_EVENT", false, 0, "of launches only: a capture makes an edge of it, which is kept"},
    {Aspect::attribute, 8, "PRIORITY", true, 4, "as it is; it acts with USE_NODE_PRIORITY"},
    {Aspect::attribute, 9, "MEM_SYNC_DOMAIN_MAP", true, 2, "as it is"},
    {Aspect::attribute, 10, "MEM_SYNC_DOMAIN", true, 4, "as it is"},
    {Aspect::attribute, 11, "PREFERRED_CLUSTER_DIMENSION", true, 12, "as it is, set after the cluster dimension"},
    {Aspect::attribute, 12, "LAUNCH_COMPLETION_EVENT", false, 0, "of launches only: a capture makes an edge of it, which is kept"},
    {Aspect::attribute, 13, "DEVICE_UPDATABLE_KERNEL_NODE", false, 4, "kernels change the node through a handle of the capturing process; 0 is a plain node"},
    {Aspect::attribute, 14, "PREFERRED_SHARED_MEMORY_CARVEOUT", true, 4, "as it is"},
    {Aspect::attribute, 16, "NVLINK_UTIL_CENTRIC_SCHEDULING", false, 4, "a hint without a stated meaning; 0 is a plain node"},

    {Aspect::edge, 0, "DEFAULT", true, 0, "as it is"},
    {Aspect::edge, 1, "PROGRAMMATIC", true, 0, "between kernel nodes, with the ports PROGRAMMATIC and LAUNCH_ORDER"},

    {Aspect::port, 0, "DEFAULT", true, 0, "the node is complete"},
    {Aspect::port, 1, "PROGRAMMATIC", true, 0, "with a programmatic edge"},
    {Aspect::port, 2, "LAUNCH_ORDER", true, 0, "all blocks have begun"},

    {Aspect::flag, 1, "AUTO_FREE_ON_LAUNCH", true, 0, "as it is"},
    {Aspect::flag, 2, "UPLOAD", false, 0, "it needs a stream and other parameters; executables are uploaded by their first launch"},
    {Aspect::flag, 4, "DEVICE_LAUNCH", false, 0, "nothing on the device could find the executable again"},
    {Aspect::flag, 8, "USE_NODE_PRIORITY", true, 0, "as it is; drivers of release 580 do not report it"},
};

// The row of an id, or null: refuse it.
constexpr const FidelityRow *fidelity(Aspect aspect, uint32_t id) {
  for (const FidelityRow &row : kFidelity)
    if (row.aspect == aspect && row.id == id) return &row;
  return nullptr;
}

}  // namespace hg
