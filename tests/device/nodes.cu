// Kernels for the tests of graph nodes on a real driver, committed as nodes.ptx:
//   nvcc -ptx -rdc=true -arch=compute_75 -o tests/device/nodes.ptx tests/device/nodes.cu
#include <stdint.h>

struct Twelve { uint32_t at[3]; };
struct Big { uint8_t at[128]; };

extern "C" {
__device__ uint64_t table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
}

// Every byte of the parameters, in order, without what lies between them.
extern "C" __global__ void mixed(uint8_t a, Twelve b, uint16_t c, Big d, uint8_t *out) {
  *out++ = a;
  for (int i = 0; i < 12; ++i) *out++ = reinterpret_cast<const uint8_t *>(&b)[i];
  *out++ = c & 0xFF;
  *out++ = c >> 8;
  for (int i = 0; i < 128; ++i) *out++ = d.at[i];
}
extern "C" __global__ void nothing() {}
extern "C" __global__ void tiled(uint64_t *out) {  // the last word of its dynamic shared memory
  extern __shared__ uint64_t shared[];
  uint32_t bytes;
  asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(bytes));
  shared[bytes / 8 - 1] = 42;
  *out = shared[bytes / 8 - 1];
}
extern "C" __global__ void sum(uint64_t *out) {
  uint64_t total = 0;
  for (int i = 0; i < 8; ++i) total += table[i];
  *out = total;
}
extern "C" __global__ __launch_bounds__(128) void bounded(uint64_t *out) { atomicAdd((unsigned long long *)out, 1ull); }
