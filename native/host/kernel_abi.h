// The binary interface between the host executor and a host kernel module.
//
// A module is a freestanding shared object carried in a core: no needed libraries, no undefined symbols, no
// constructors, no thread-local storage. It exports one symbol, `heliograph_module`.
//
// A kernel runs blocks [first, last) of a linear grid. Blocks are independent: any worker may run any block, in
// any order, so a kernel's result never depends on how the grid was split. Parameters are one plain C struct in
// natural alignment; the module declares where the pointers in it are.
#pragma once
#include <stdint.h>

#define HG_KERNEL_ABI 1u

typedef void (*hg_kernel)(const void *params, uint32_t first, uint32_t last);

struct hg_function {
  const char *name;                 // unique in the module, e.g. "linear_q4_1"
  hg_kernel run;
  uint32_t param_bytes;             // sizeof the parameter struct
  uint32_t pointer_count;
  const uint32_t *pointer_offsets;  // byte offsets of the pointer members, ascending
};

struct hg_module {
  uint32_t abi;                     // HG_KERNEL_ABI
  uint32_t function_count;
  const char *family;               // "linear"
  const char *level;                // "generic", "x86-64-v3", "x86-64-v4+vnni+bf16"
  const struct hg_function *functions;
};
