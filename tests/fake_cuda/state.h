// The fake CUDA driver: contexts, memory, streams, modules, graphs and error codes, kept in host memory.
//
// It is opened through the same table as the real one (HELIOGRAPH_LIBCUDA) and refuses what the real one refuses.
// Handles are numbers that are never used twice, so a call with a destroyed handle is known for what it is: it is
// refused and written down as a misuse. Tests steer it through the fake_* functions of control.cpp.
//
// Time. Work is not executed by threads: each piece gets the moment at which it is done, from its stream, the events
// it waited for and its duration. Its effect on memory happens at that moment, that is, before the first call after
// it. So work is really in flight for a while, and reading too early gives the old bytes.
#pragma once
#include <cuda.h>
#include <cupti.h>

#include "../../native/host/kernel_abi.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace fake {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

constexpr int kSharedOptin = 227 << 10;  // bytes of shared memory that a block may have

struct Context {
  int device;
  unsigned long long id;
  int retained = 0;
  bool gone = false;                 // destroyed or reset under its users
  Time legacy{};                     // all work of the default stream is done by then
  Time ready{};                      // all work given to it so far is done by then, also that of destroyed streams
  CUresult sticky = CUDA_SUCCESS;    // a kernel faulted: every later call says so
};
struct Param {
  size_t offset, size;
};
struct Function {
  uintptr_t module;
  std::string name;
  std::vector<Param> params;
  const hg_function *host = nullptr;  // of an image that is a host kernel module: what runs
  std::map<int, int> attributes = default_attributes();
  std::map<int, int> initial{};  // what they were when the function was loaded
  int static_shared = 0;
  unsigned threads = 0;       // a block must have exactly this many, if not 0
  bool cluster_fixed = false;  // at compile time: the required cluster cannot be set
  bool loaded = false;         // onto the device, by cuFuncLoad or by the first use
  static std::map<int, int> default_attributes() {
    return {{0, 1024}, {1, 0}, {2, 0}, {3, 0}, {4, 16}, {5, 90}, {6, 90}, {7, 0}, {8, 48 << 10}, {9, -1}, {10, 0},
            {11, 0}, {12, 0}, {13, 0}, {14, 0}, {15, 0}};
  }
};
struct Global {
  uint64_t address, size;
};
struct Module {
  Context *context;
  std::map<std::string, uintptr_t> functions;
  uint32_t id = 0;  // what CUPTI calls it
  uintptr_t of_library = 0;
  void *library = nullptr;  // of a host kernel module, and the descriptor that it was loaded from
  int descriptor = -1;
  std::map<std::string, Global> globals;
};
// A library holds images of which each becomes a module when something first needs it (lazy loading).
struct Kernel {
  uintptr_t library;
  std::string name;
  size_t image;
  std::map<int, int> attributes;
};
struct Library {
  std::vector<std::string> images;
  std::map<size_t, uintptr_t> modules;  // by image, once loaded
  std::map<std::string, uintptr_t> kernels;
};
struct Node {
  uintptr_t graph;
  CUgraphNodeType type;
  uintptr_t function = 0;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
  std::vector<std::vector<uint8_t>> arguments;
  std::vector<void *> argument_pointers;  // what GetParams hands out
  CUDA_MEMSET_NODE_PARAMS memset{};
  CUDA_MEMCPY3D copy{};
  uintptr_t kernel = 0;           // of a launch that named one
  bool buffered = false;          // parameters came as one buffer
  std::vector<uint8_t> buffer{};
  size_t buffer_size = 0;
  void *extra[5] = {};
  std::map<int, std::array<uint8_t, 64>> attributes{};
  uintptr_t child = 0;            // a graph that belongs to the node
  CUevent event = nullptr;
};
struct Edge {
  uintptr_t from, to;
  CUgraphEdgeData data;
};
struct Graph {
  std::vector<uintptr_t> nodes;
  std::vector<Edge> edges;
};
struct Step {  // a node of an executable: what it does and which steps it waits for
  Node node;
  std::vector<size_t> after;
};
struct Executable {
  Context *context;
  unsigned flags;
  uint64_t bytes;
  std::vector<Step> steps;
  Time ready{};
};
struct Capture {
  cuuint64_t id;
  uintptr_t origin, graph;
  std::thread::id thread;
  CUstreamCaptureMode mode;
  bool invalid = false;
};
struct Stream {
  Context *context;
  Time ready{};
  cuuint64_t capture = 0;
  std::set<uintptr_t> tips;  // while capturing: the nodes that the next one depends on
};
struct Event {
  Context *context;
  Time done{};
  cuuint64_t capture = 0;
  std::set<uintptr_t> tips;
};
struct Mapping {
  uint64_t size, allocation;
  bool readable = false, writable = false;
};
struct Operation {
  Context *context;
  std::function<CUresult()> effect;
};
struct Waiting {  // a kernel that waits until a word is not zero: `done` is a long way off until then
  Time start, done;
  uint64_t word;
};
struct Fault {
  int nth;  // 0: every call; less: every one from the -nth-th on
  CUresult code;
};

struct State {
  std::recursive_mutex mutex;
  int driver_version = 13000, devices = 2;
  bool initialised = false;
  uintptr_t next_handle = 0x1000;
  cuuint64_t next_id = 1;
  std::map<int, Context *> primary;  // contexts are kept for ever, so that a stale handle is recognised
  std::set<Context *> contexts;
  std::map<uintptr_t, Module> modules;
  std::map<uintptr_t, Function> functions;
  std::map<uintptr_t, Library> libraries;
  std::map<uintptr_t, Kernel> kernels;
  std::map<int, uint64_t> limits = default_limits();
  std::map<uintptr_t, Graph> graphs;
  std::map<uintptr_t, Node> nodes;
  std::map<uintptr_t, Executable> executables;
  std::map<uintptr_t, Stream> streams;
  std::map<uintptr_t, Event> events;
  std::map<cuuint64_t, Capture> captures;
  std::map<uint64_t, uint64_t> reservations, allocations;  // address -> size, handle -> size
  std::map<uint64_t, uint64_t> pinned;                     // host address -> size
  std::set<uint64_t> exportable;                           // allocations whose handle can be exported
  std::map<uint64_t, Mapping> mappings;                    // by address
  std::map<std::pair<Time, uint64_t>, Operation> pending;
  uint64_t sequence = 0;
  std::vector<Waiting> gates;
  std::vector<std::pair<Time, Clock::duration>> shifts;  // from this moment on, everything came so much earlier
  uint32_t next_module = 1;
  std::chrono::microseconds copy_time{0};  // of each copy between host and device
  static std::map<int, uint64_t> default_limits() {  // H200, driver 580.159
    return {{0, 1024}, {1, 7ull << 20}, {2, 8ull << 20}, {4, 2048}, {5, 128}, {6, 0}};
  }
  // what tests set
  bool edge_fault = true;              // drivers 580 to 610 apply the first edge record of a call to all of its edges
  std::map<uint64_t, std::pair<uint64_t, bool>> elsewhere;  // memory of others: address -> size, managed
  std::set<int> newer_attributes;      // ids of node attributes that no header has
  std::set<int> missing_attributes;    // ids that this driver does not know
  uint8_t padding = 0;                 // what the driver writes between and behind the members of an attribute
  uint64_t memory_limit = 1ull << 30;
  std::chrono::microseconds kernel_time{0};
  std::map<std::string, Fault> faults;
  std::map<std::string, CUresult> faulting_kernels;
  std::set<std::string> hidden;
  int ignored_hints = 0;
  int reported_flags = -1;
  bool eager = false;  // libraries are loaded whole
  std::multimap<std::string, std::string> loads_inside;  // call -> an image of the driver's own that it loads, once
  // what tests read
  std::map<std::string, int> calls;
  std::string misuse, log;
  uint64_t destroyed_in_flight = 0;
};
State &state();
std::vector<Context *> &current();  // this thread's stack
bool &of_somebody_else();           // this thread's call is one of foreign.cpp
CUstreamCaptureMode &capture_mode();  // this thread's, for calls that may break a capture

// One call of the driver: takes the lock, lets time pass, counts, and injects the fault that a test asked for.
class Call {
 public:
  explicit Call(const char *name);
  CUresult refused = CUDA_SUCCESS;  // the call must return this
 private:
  std::lock_guard<std::recursive_mutex> lock_;
};
#define FAKE_CALL(name)            \
  ::fake::Call call(#name);        \
  ::fake::State &s = ::fake::state(); \
  (void)s;                         \
  if (call.refused != CUDA_SUCCESS) return call.refused

// As FAKE_CALL, and needs a living current context.
#define FAKE_CONTEXT_CALL(name)                                       \
  ::fake::Call call(#name); /* not through FAKE_CALL, which would see cuda.h's own name for it */ \
  ::fake::State &s = ::fake::state();                                 \
  (void)s;                                                            \
  ::fake::Context *context = ::fake::current().empty() ? nullptr : ::fake::current().back(); \
  if (context && ::fake::fatal(call.refused)) context->sticky = call.refused; \
  if (call.refused != CUDA_SUCCESS) return call.refused;              \
  if (CUresult dead = ::fake::usable(context); dead != CUDA_SUCCESS) return dead

CUresult usable(const Context *context);
bool fatal(CUresult code);             // a context does not survive it
void drop_objects(Context *context);   // all that was created in it goes with it
uintptr_t new_handle();
void misuse(const std::string &text);
void note(const std::string &line);

// The object behind a handle, or null; a handle that was destroyed is a misuse.
template <class T>
T *find(std::map<uintptr_t, T> &objects, const void *handle, const char *what) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  const auto at = objects.find(number);
  if (at != objects.end()) return &at->second;
  if (number) misuse(std::string("use of a destroyed ") + what);
  return nullptr;
}
template <class H>
H handle(uintptr_t number) {
  return reinterpret_cast<H>(number);
}

// ---- what CUPTI hears (tests/fake_cupti) ----
struct Observer {
  void (*api)(bool enter, uint32_t id, const char *name, const void *params, CUresult *result, uint32_t correlation);
  void (*module)(bool loaded, uint32_t id, const char *image, size_t size);
};
extern std::atomic<const Observer *> observer;
void tell_loaded(Module &module, const std::string &image);
void tell_unloaded(const Module &module);
void load_inside(const char *name);
std::string cubin_of(const std::string &image);  // a text image as an object file for the GPU, as CUPTI hands it out
std::string text_of(const char *cubin);          // the way back; empty if it is no such file

// Runs a call between its two callbacks, which come without the driver's lock.
template <class Params, class Body>
CUresult observed(uint32_t id, const char *name, const Params &params, Body body) {
  static std::atomic<uint32_t> correlations{1};
  const Observer *listener = observer;
  const uint32_t correlation = correlations++;
  if (listener) listener->api(true, id, name, &params, nullptr, correlation);
  load_inside(name);
  CUresult result = body();
  if (listener) listener->api(false, id, name, &params, &result, correlation);
  return result;
}
#define FAKE_OBSERVED(call) CUPTI_DRIVER_TRACE_CBID_##call, #call

// The function that a handle means: a kernel's own, loaded now if need be, or the handle itself.
CUfunction as_function(CUfunction handle);
CUresult load_image(Context *context, const std::string &image, uintptr_t of_library, uintptr_t &number);
void unload_module(uintptr_t number);
// Of a function or of its kernel.
CUresult set_attribute(const Function &function, std::map<int, int> &attributes, CUfunction_attribute id, int value);

// ---- time ----
void advance();  // effects of everything that is done by now
Time enqueue(Context *context, Time start, std::chrono::microseconds duration, std::function<CUresult()> effect);
// A node of a graph or a stream: as long as it takes, and if it is a kernel that waits, until it need not.
Time enqueue(Context *context, Time start, const Node &node);
// Sleeps until then, without the lock; the context's error if it has one afterwards.
CUresult wait_until(Context *context, Time when);

// ---- work ----
std::chrono::microseconds duration(const Node &node);
CUresult run(const Node &node);  // its effect on memory
bool pinned(uint64_t address, uint64_t size);
CUresult accessible(uint64_t address, uint64_t size, bool write);
CUresult submit(CUstream stream, Node node);  // enqueues it, or adds a node to the stream's capture
CUresult fill_kernel(Node &node, CUfunction function, void **arguments, void **extra = nullptr);
void destroy_nodes(const Graph &graph);  // and the graphs inside them
uint64_t memory_in_use();
// An error if the calling thread may not make a call that would break a capture; the capture is then invalid.
CUresult unsafe_in_capture();

}  // namespace fake
