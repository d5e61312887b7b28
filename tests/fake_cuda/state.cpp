#include <sys/mman.h>

#include "state.h"

namespace fake {

State &state() {
  static State *all = new State;  // never destroyed: calls may come while the process exits
  return *all;
}

std::vector<Context *> &current() {
  thread_local std::vector<Context *> stack;
  return stack;
}

CUstreamCaptureMode &capture_mode() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

bool &of_somebody_else() {
  thread_local bool value = false;
  return value;
}

Call::Call(const char *name) : lock_(state().mutex) {
  State &s = state();
  advance();
  if (of_somebody_else()) return;
  ++s.calls[name];
  if (!s.initialised && std::string(name) != "cuInit") refused = CUDA_ERROR_NOT_INITIALIZED;
  const auto fault = s.faults.find(name);
  if (fault == s.faults.end()) return;
  if (fault->second.nth < 0 && ++fault->second.nth < 0) return;
  const bool every = fault->second.nth == 0;
  if (!every && --fault->second.nth > 0) return;
  refused = fault->second.code;
  if (!every) s.faults.erase(fault);
}

CUresult usable(const Context *context) {
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->gone) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->sticky;
}

bool fatal(CUresult code) {
  switch (code) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

void drop_objects(Context *context) {
  State &s = state();
  auto drop = [context](auto &objects) {
    std::erase_if(objects, [context](const auto &object) { return object.second.context == context; });
  };
  drop(s.modules);
  drop(s.executables);
  drop(s.streams);
  drop(s.events);
  s.functions.clear();
  s.libraries.clear();
  s.kernels.clear();
  s.limits = State::default_limits();
  s.graphs.clear();
  s.nodes.clear();
  s.captures.clear();
  s.mappings.clear();
  s.allocations.clear();
  s.exportable.clear();
  for (const auto &[address, size] : s.pinned) munmap(reinterpret_cast<void *>(address), size);
  s.pinned.clear();
  for (const auto &[address, size] : s.reservations) munmap(reinterpret_cast<void *>(address), size);
  s.reservations.clear();
}

uintptr_t new_handle() { return state().next_handle += 0x10; }
void misuse(const std::string &text) { state().misuse += text + "\n"; }
void note(const std::string &line) { state().log += line + "\n"; }

namespace {

// Everything from `from` on comes earlier.
void shift(Time from, Clock::duration by) {
  State &s = state();
  auto move = [=](Time &time) {
    if (time >= from) time -= by;
  };
  std::map<std::pair<Time, uint64_t>, Operation> pending;
  for (auto &[key, operation] : s.pending) {
    Time time = key.first;
    move(time);
    pending[{time, key.second}] = std::move(operation);
  }
  s.pending = std::move(pending);
  for (auto &[number, stream] : s.streams) move(stream.ready);
  for (auto &[number, event] : s.events) move(event.done);
  for (auto &[number, executable] : s.executables) move(executable.ready);
  for (Context *context : s.contexts) move(context->ready);
  for (Waiting &gate : s.gates) {
    move(gate.start);
    move(gate.done);
  }
  s.shifts.emplace_back(from, by);
}

// Kernels that waited for a word and need not any more are done now, or when their turn comes.
bool open_gates() {
  State &s = state();
  for (size_t i = 0; i < s.gates.size(); ++i) {
    const Waiting gate = s.gates[i];
    const bool readable = accessible(gate.word, 4, false) == CUDA_SUCCESS;
    if (readable && *reinterpret_cast<const uint32_t *>(gate.word) == 0) continue;
    s.gates.erase(s.gates.begin() + static_cast<ptrdiff_t>(i));
    shift(gate.done, gate.done - std::max(gate.start, Clock::now()));
    return true;
  }
  return false;
}

}  // namespace

void advance() {
  State &s = state();
  do {
    const Time now = Clock::now();
    while (!s.pending.empty() && s.pending.begin()->first.first <= now) {
      Operation operation = std::move(s.pending.begin()->second);
      s.pending.erase(s.pending.begin());
      if (usable(operation.context) == CUDA_SUCCESS) operation.context->sticky = operation.effect();
    }
  } while (open_gates());
}

Time enqueue(Context *context, Time start, std::chrono::microseconds duration, std::function<CUresult()> effect) {
  const Time done = std::max(start, Clock::now()) + duration;
  state().pending[{done, state().sequence++}] = {context, std::move(effect)};
  context->ready = std::max(context->ready, done);
  return done;
}

CUresult wait_until(Context *context, Time when) {
  // The caller's Call holds the lock once.
  size_t seen = state().shifts.size();
  auto wait = [&] {
    advance();
    for (; seen < state().shifts.size(); ++seen)
      if (when >= state().shifts[seen].first) when -= state().shifts[seen].second;
  };
  while (usable(context) == CUDA_SUCCESS && Clock::now() < when) {
    state().mutex.unlock();
    std::this_thread::sleep_until(std::min(when, Clock::now() + std::chrono::milliseconds(5)));
    state().mutex.lock();
    wait();
  }
  advance();
  return usable(context);
}

uint64_t memory_in_use() {
  uint64_t total = 0;
  for (const auto &[handle, size] : state().allocations) total += size;
  for (const auto &[handle, executable] : state().executables) total += executable.bytes;
  return total;
}

CUresult unsafe_in_capture() {
  if (capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (auto &[id, capture] : state().captures) {
    if (capture.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && capture.thread != std::this_thread::get_id()) continue;
    if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    capture.invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace fake
