// How the library is opened, the names of its error codes, and what tests set and read.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

#define CUDA_ENTRY extern "C" CUresult CUDAAPI
#define CONTROL extern "C" __attribute__((visibility("default")))

namespace fake {
namespace {

struct Name {
  CUresult code;
  const char *name;
};
constexpr Name kNames[] = {
#include "errors.inc"  // every code of cuda.h, written by the build
};

const char *name_of(CUresult code) {
  for (const Name &entry : kNames)
    if (entry.code == code) return entry.name;
  return nullptr;
}

struct Entry {
  const char *name;
  void *function;
  int version;
};
#define FAKE_ENTRY(name, symbol, version) {#name, reinterpret_cast<void *>(&::symbol), version},
const Entry kEntries[] = {
#include "entries.inc"
};
#undef FAKE_ENTRY

std::map<std::string, uint64_t> live() {
  State &s = state();
  uint64_t contexts = 0;
  for (const Context *context : s.contexts) contexts += static_cast<uint64_t>(context->retained > 0);
  return {{"contexts", contexts},
          {"modules", s.modules.size()},
          {"libraries", s.libraries.size()},
          {"graphs", s.graphs.size()},
          {"executables", s.executables.size()},
          {"streams", s.streams.size()},
          {"events", s.events.size()},
          {"reservations", s.reservations.size()},
          {"allocations", s.allocations.size()},
          {"mappings", s.mappings.size()},
          {"pinned", s.pinned.size()},
          {"captures", s.captures.size()}};
}

// What a process leaves behind, for tests that end one.
__attribute__((destructor)) void report() {
  const char *path = std::getenv("FAKE_CUDA_REPORT");
  if (!path) return;
  std::FILE *file = std::fopen(path, "w");
  for (const auto &[kind, count] : live()) std::fprintf(file, "%s %llu\n", kind.c_str(), (unsigned long long)count);
  std::fprintf(file, "destroyed_in_flight %llu\n", (unsigned long long)state().destroyed_in_flight);
  std::fprintf(file, "misuse %s\n", state().misuse.c_str());
  std::fclose(file);
}

}  // namespace

CUDA_ENTRY cuGetErrorName(CUresult code, const char **name) {
  *name = name_of(code);
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_ENTRY cuGetErrorString(CUresult code, const char **text) {
  *text = name_of(code) ? "the fake driver's sentence for this code" : nullptr;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CONTROL CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t,
                                     CUdriverProcAddressQueryResult *status) {
  State &s = state();
  *function = nullptr;
  *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Entry &entry : kEntries) {
    if (std::strcmp(entry.name, name) || s.hidden.count(name)) continue;
    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    // Like the driver: a symbol has the signature of the version asked for, so any other number is another function.
    if (version != entry.version || version > s.driver_version) continue;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = entry.function;
  }
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// ---- control ----

// Also drops whatever an earlier test left behind (and failed for).
CONTROL void fake_reset() {
  State &s = state();
  std::lock_guard lock(s.mutex);
  for (Context *context : s.contexts) {
    context->gone = true;
    context->retained = 0;
    drop_objects(context);
  }
  s.pending.clear();
  s.gates.clear();
  s.shifts.clear();
  s.driver_version = 13000;
  s.devices = 2;
  s.memory_limit = 1ull << 30;
  s.kernel_time = s.copy_time = std::chrono::microseconds{0};
  s.faults.clear();
  s.faulting_kernels.clear();
  s.hidden.clear();
  s.ignored_hints = 0;
  s.edge_fault = true;
  capture_mode() = CU_STREAM_CAPTURE_MODE_GLOBAL;
  s.elsewhere.clear();
  s.newer_attributes.clear();
  s.missing_attributes.clear();
  s.padding = 0;
  s.reported_flags = -1;
  s.eager = false;
  s.loads_inside.clear();
  s.calls.clear();
  s.misuse.clear();
  s.log.clear();
  s.destroyed_in_flight = 0;
}
CONTROL void fake_fail(const char *call, int nth, int code) {
  state().faults[call] = {nth, static_cast<CUresult>(code)};
}
CONTROL void fake_heal(const char *call) { state().faults.erase(call); }
CONTROL void fake_fault_kernel(const char *name, int code) {
  state().faulting_kernels[name] = static_cast<CUresult>(code);
}
CONTROL void fake_memory_limit(uint64_t bytes) { state().memory_limit = bytes; }
CONTROL uint64_t fake_memory_in_use() { return memory_in_use(); }
CONTROL void fake_kernel_time(uint32_t us) { state().kernel_time = std::chrono::microseconds{us}; }
CONTROL void fake_copy_time(uint32_t us) { state().copy_time = std::chrono::microseconds{us}; }
CONTROL uint64_t fake_exportable() { return state().exportable.size(); }
CONTROL void fake_edge_fault(int on) { state().edge_fault = on; }
CONTROL void fake_elsewhere(uint64_t address, uint64_t size, int managed) {
  state().elsewhere[address] = {size, managed != 0};
}
CONTROL void fake_newer_attribute(int id) { state().newer_attributes.insert(id); }
CONTROL void fake_missing_attribute(int id) { state().missing_attributes.insert(id); }
CONTROL void fake_padding(int byte) { state().padding = static_cast<uint8_t>(byte); }
CONTROL void fake_driver_version(int version) { state().driver_version = version; }
CONTROL void fake_hide(const char *name) { state().hidden.insert(name); }
CONTROL void fake_ignore_hints(int count) { state().ignored_hints = count; }
CONTROL void fake_report_flags(int flags) { state().reported_flags = flags; }
CONTROL void fake_eager(int eager) { state().eager = eager != 0; }
CONTROL void fake_load_inside(const char *call, const char *image) { state().loads_inside.emplace(call, image); }
// What this thread calls from now on is not ours.
CONTROL void fake_of_somebody_else(int on) { of_somebody_else() = on != 0; }
CONTROL void fake_observe(const Observer *listener) { observer = listener; }
// Someone in this process resets the primary context: all in it is gone.
CONTROL void fake_reset_context(int device) {
  State &s = state();
  std::lock_guard lock(s.mutex);
  Context *context = s.primary[device];
  context->gone = true;
  context->retained = 0;
  drop_objects(context);
}
CONTROL int fake_calls(const char *name) { return state().calls[name]; }
CONTROL const char *fake_all_calls() {
  static std::string text;
  text.clear();
  for (const auto &[name, count] : state().calls) text += name + " " + std::to_string(count) + "\n";
  return text.c_str();
}
CONTROL uint64_t fake_live(const char *kind) { return live().at(kind); }
CONTROL uint64_t fake_destroyed_in_flight() { return state().destroyed_in_flight; }
CONTROL const char *fake_misuse() { return state().misuse.c_str(); }
CONTROL const char *fake_log() { return state().log.c_str(); }

}  // namespace fake
