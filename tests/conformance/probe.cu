// The kernels of native/host/kernels/probe.cpp that the conformance suite runs on a GPU, committed as probe.ptx:
//   nvcc -ptx -rdc=true -arch=compute_75 -o tests/conformance/probe.ptx tests/conformance/probe.cu
// One thread a block does what a host kernel does for a block.
#include <stdint.h>

using Word = unsigned long long;

extern "C" {

__global__ void count(Word *counter) { atomicAdd(counter, 1); }

__global__ void tick(Word *counter) {
  if (blockIdx.x == 0) atomicAdd(counter, 1);
}

__global__ void write(uint32_t *out, uint64_t value) { out[blockIdx.x] = uint32_t(value); }

__global__ void add(const float *x, const float *y, float *out, uint64_t count) {
  const uint64_t first = uint64_t(blockIdx.x) * 64, last = first + 64;
  for (uint64_t i = first; i < last && i < count; ++i) out[i] = x[i] + y[i];
}

__global__ void fold(uint64_t *cell, uint64_t value) { *cell = *cell * 6364136223846793005ull + value; }

__global__ void spin(Word *counter, uint64_t microseconds) {
  uint64_t now, end;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  end += microseconds * 1000;
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now < end);
  atomicAdd(counter, 1);
}

__global__ void gate(const volatile uint32_t *open, Word *counter) {
  while (*open == 0) {}
  __threadfence();
  atomicAdd(counter, 1);
}

}
