// Kernels of the conformance suite and the launch benchmark: each shows one thing that the executor must do.
#include "kernel.h"

struct Count { uint64_t *counter; };
struct Tick { uint64_t *counter; };                               // counts nodes: its first block adds 1
struct Write { uint32_t *out; uint64_t value; };                  // out[block] = value
struct Add { const float *x, *y; float *out; uint64_t count; };   // 64 elements a block
struct Fold { uint64_t *cell; uint64_t value; };                  // cell = cell * odd + value: order shows
struct Norm { const float *x; float *out; uint64_t columns; };    // out[block] = sum of squares of row `block`
struct Spin { uint64_t *counter; uint64_t microseconds; };
struct Gate { const uint32_t *open; uint64_t *counter; };         // waits until another kernel has opened it
struct Control { uint32_t *out; };                                // out[block] = floating-point control word
struct Fault { uint64_t *address; uint64_t kind; };
struct Identity { uint64_t *out; };

HG_POINTERS(Count, counter)
HG_POINTERS(Tick, counter)
HG_POINTERS(Write, out)
HG_POINTERS(Add, x, y, out)
HG_POINTERS(Fold, cell)
HG_POINTERS(Norm, x, out)
HG_POINTERS(Spin, counter)
HG_POINTERS(Gate, open, counter)
HG_POINTERS(Control, out)
HG_POINTERS(Fault, address)
HG_POINTERS(Identity, out)

namespace {

// Tests make other modules by writing another value over this one in the image: the code that ran says which it was.
const volatile uint64_t identity_word = 0x7A6B'5C4D'3E2F'1001;

uint64_t nanoseconds() {
#if defined(__x86_64__)
  struct { int64_t seconds, nanoseconds; } now;
  long result = 228;  // clock_gettime(CLOCK_MONOTONIC): there is no C library here
  asm volatile("syscall" : "+a"(result) : "D"(1L), "S"(&now) : "rcx", "r11", "memory");
  return uint64_t(now.seconds) * 1'000'000'000 + uint64_t(now.nanoseconds);
#else
  uint64_t ticks, rate;
  asm volatile("mrs %0, cntvct_el0\n\tmrs %1, cntfrq_el0" : "=r"(ticks), "=r"(rate));
  return ticks * 1'000 / (rate / 1'000'000);
#endif
}

void count(const Count &p, uint32_t first, uint32_t last) {
  __atomic_fetch_add(p.counter, last - first, __ATOMIC_RELAXED);
}

void tick(const Tick &p, uint32_t first, uint32_t) {
  if (first == 0) __atomic_fetch_add(p.counter, 1, __ATOMIC_RELAXED);
}

void write(const Write &p, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i < last; ++i) p.out[i] = uint32_t(p.value);
}

void add(const Add &p, uint32_t first, uint32_t last) {
  const uint64_t end = hg::min_of(uint64_t(last) * 64, p.count);
  for (uint64_t i = uint64_t(first) * 64; i < end; ++i) p.out[i] = p.x[i] + p.y[i];
}

void fold(const Fold &p, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i < last; ++i) *p.cell = *p.cell * 6364136223846793005 + p.value;
}

void norm(const Norm &p, uint32_t first, uint32_t last) {
  for (uint32_t row = first; row < last; ++row) {
    float sum = 0;
    for (uint64_t i = 0; i < p.columns; ++i) sum += p.x[row * p.columns + i] * p.x[row * p.columns + i];
    p.out[row] = sum;
  }
}

void spin(const Spin &p, uint32_t first, uint32_t last) {
  const uint64_t end = nanoseconds() + p.microseconds * 1'000;
  while (nanoseconds() < end) {}
  __atomic_fetch_add(p.counter, last - first, __ATOMIC_RELAXED);
}

void gate(const Gate &p, uint32_t first, uint32_t last) {
  while (__atomic_load_n(p.open, __ATOMIC_ACQUIRE) == 0) {}
  __atomic_fetch_add(p.counter, last - first, __ATOMIC_RELAXED);
}

void control(const Control &p, uint32_t first, uint32_t last) {
  uint32_t word = 0;
#if defined(__x86_64__)
  asm volatile("stmxcsr %0" : "=m"(word));
  word &= ~0x3Fu;  // without the sticky exception flags
#endif
  for (uint32_t i = first; i < last; ++i) p.out[i] = word;
}

void fault(const Fault &p, uint32_t, uint32_t) {
  switch (p.kind) {
    case 0: *const_cast<volatile uint64_t *>(p.address) = 1; break;  // SIGSEGV, or SIGBUS beyond a file's end
    case 1: __builtin_trap();                                        // SIGILL
#if defined(__x86_64__)
    case 2: asm volatile("xorl %%edx, %%edx\n\txorl %%ecx, %%ecx\n\tdivl %%ecx" ::: "eax", "ecx", "edx"); break;  // SIGFPE
#endif
  }
}

void identity(const Identity &p, uint32_t, uint32_t) { *p.out = identity_word; }

}  // namespace

HG_MODULE("probe", hg::function<count>("count"), hg::function<tick>("tick"), hg::function<write>("write"),
          hg::function<add>("add"),
          hg::function<fold>("fold"), hg::function<norm>("norm"), hg::function<spin>("spin"),
          hg::function<gate>("gate"), hg::function<control>("control"), hg::function<fault>("fault"),
          hg::function<identity>("identity"))
