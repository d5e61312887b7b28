// Preloaded before main: maps memory where a core wants its region, as somebody else's library might.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {
struct Taker {
  Taker() {
    const char *address = getenv("TAKEN_ADDRESS"), *size = getenv("TAKEN_BYTES");
    if (!address || !size) return;
    void *wanted = reinterpret_cast<void *>(strtoull(address, nullptr, 0));
    void *at = mmap(wanted, strtoull(size, nullptr, 0), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != wanted) abort();
    memset(at, 0x5a, 4096);
  }
  ~Taker() {  // whatever was loaded meanwhile, this is still ours
    const char *address = getenv("TAKEN_ADDRESS");
    if (!address) return;
    const unsigned char *at = reinterpret_cast<unsigned char *>(strtoull(address, nullptr, 0));
    for (int i = 0; i < 4096; ++i)
      if (at[i] != 0x5a) _Exit(77);
  }
} taker;
}  // namespace
