// What every device can do. Two implementations (host_*.cpp, cuda_*.cpp), one conformance suite
// (tests/conformance) that runs on both.
//
// Lifetimes. Every object is held by shared_ptr, and each holds what it depends on: a Function its Module, a node
// its Function, an Executable the nodes it runs, a Stream and a Reservation their Device. An Executable's
// destructor drains it: memory that a running launch reads is never freed under it. Destructors never throw.
//
// Threads. Every method may be called from any thread without the interpreter lock. Work given to one stream runs
// in order; work on two streams has no order unless an Event gives it one.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "error.h"

namespace hg {

class Device;
class Stream;
class Executable;
class SealedImage;  // sealed_image.h

// Flags of an instantiation, with the CUDA driver's values. The supported values are 0, 1, 8 and 9.
enum InstantiateFlags : uint32_t {
  kAutoFreeOnLaunch = 1,
  kUpload = 2,
  kDeviceLaunch = 4,
  kUseNodePriority = 8,
};

// Node kinds, with the CUDA driver's values.
enum class NodeKind : uint8_t { kernel = 0, memcpy = 1, memset = 2, empty = 5 };

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

class Reservation {  // a span of addresses that is ours, and the part of it that is backed by memory
 public:
  virtual ~Reservation() = default;
  virtual uint64_t address() const = 0;
  virtual uint64_t span() const = 0;
  virtual uint64_t mapped_bytes() const = 0;
  // Backs [offset, offset+size) with zeroed memory. Both are multiples of the device's granularity().
  virtual void map(uint64_t offset, uint64_t size) = 0;
  virtual void unmap(uint64_t offset, uint64_t size) = 0;
  virtual void protect(uint64_t offset, uint64_t size, bool writable) = 0;
  virtual void write(uint64_t offset, const void *from, size_t size) = 0;
  virtual void read(uint64_t offset, void *to, size_t size) = 0;
  virtual void fill(uint64_t offset, uint8_t value, uint64_t size) = 0;
  // The memory itself where the host can address it, else null.
  virtual void *host_pointer(uint64_t offset, size_t size) = 0;
  virtual bool writable(uint64_t offset, uint64_t size) const = 0;  // mapped and not protected, all of it
};

class Module;

struct Param {  // one parameter in the kernel's parameter space
  uint64_t offset, size;
};

// Objects that Python hands back to us derive from enable_shared_from_this, so that what a node or a stream holds is
// the C++ object and never a Python reference: a worker thread may drop the last one without the interpreter lock.
class Function : public std::enable_shared_from_this<Function> {
 public:
  virtual ~Function() = default;
  virtual const std::string &name() const = 0;
  virtual uint32_t param_bytes() const = 0;  // as the driver (host: the module) states it
  virtual std::span<const uint32_t> pointer_offsets() const = 0;  // host only; empty on CUDA
  virtual std::vector<Param> params() const { return {}; }        // CUDA only, as the driver lays them out
  virtual std::shared_ptr<Module> module() const = 0;  // null for a function that somebody else loaded (CUDA)
  virtual uint64_t local_bytes() const { return 0; }  // CUDA only: local memory of a thread
  // CUDA only: those attributes that can be set (8, 9, 11 to 15), as (id, value), ascending; on the host none.
  virtual std::vector<std::pair<uint32_t, int64_t>> attributes() const { return {}; }
  // Sets those that are greater than what is set; nothing is ever lowered. Before nodes are added.
  virtual void raise_attributes(std::span<const std::pair<uint32_t, int64_t>> attributes);
};

class Module : public std::enable_shared_from_this<Module> {
 public:
  virtual ~Module() = default;
  virtual uint32_t abi() const = 0;              // host: HG_KERNEL_ABI it was built for; 0 on CUDA
  virtual std::string family() const = 0;        // "linear"; "" where the image does not say
  virtual std::string level() const = 0;         // "x86-64-v3", "sm_90"; "" where the image does not say
  virtual std::vector<std::string> function_names() const = 0;
  virtual std::shared_ptr<Function> function(const std::string &name) = 0;
  // CUDA only: a variable of the module, by symbol. ModuleError if there is none, or if a write has another size.
  virtual std::pair<uint64_t, uint64_t> global_address(const std::string &name) const;  // address, size
  virtual std::vector<uint8_t> read_global(const std::string &name) const;
  virtual void write_global(const std::string &name, std::span<const uint8_t> data);
};

// What a kernel node has beyond its launch (CUDA only): the driver's id, and the members of its value as the driver
// lays them out, zeros behind them.
struct NodeAttribute {
  uint32_t id;
  std::array<uint8_t, 64> value{};
  bool operator==(const NodeAttribute &) const = default;
};

// How parameters reach the driver.
enum class ParamForm : uint8_t { array = 0, buffer = 1 };

struct KernelNode {
  std::shared_ptr<Function> function;
  Dim3 grid, block;
  uint32_t shared_bytes = 0;
  std::vector<uint8_t> params;  // param_bytes() of them; what lies between parameters is zero
  ParamForm form = ParamForm::array;
  std::vector<NodeAttribute> attributes;  // those that differ from a plain node's, ascending by id
};
struct MemsetNode {
  uint64_t address = 0;
  uint32_t value = 0;
  uint64_t width = 0;  // elements of a row
  uint32_t element = 1;  // bytes of the value: 1, 2 or 4
  uint64_t height = 1;
  uint64_t pitch = 0;  // bytes from row to row; 0 for one row
  // From the first byte to one past the last.
  uint64_t bytes() const { return pitch * (height - 1) + width * element; }
};
struct MemcpyNode {
  uint64_t to, from, bytes;
};
struct Node {
  NodeKind kind = NodeKind::empty;
  KernelNode kernel;
  MemsetNode memset{};
  MemcpyNode memcpy{};
};
struct Edge {
  uint32_t from, to;  // node numbers, from < to: nodes are numbered in the order in which they were added
  std::array<uint8_t, 8> data{};
};

class Template {  // a graph as the driver holds it: nodes and edges in construction order
 public:
  virtual ~Template() = default;
  virtual uint32_t add(Node node, std::span<const Edge> incoming) = 0;  // incoming edges' `to` is ignored
  virtual std::vector<Node> nodes() const = 0;   // read back from the driver, in construction order
  virtual std::vector<Edge> edges() const = 0;   // read back from the driver, sorted by (to, from)
  virtual size_t node_count() const { return nodes().size(); }
  virtual size_t edge_count() const { return edges().size(); }
  // For each node the number of the node that it is, or is inside of, in the graph itself: equal to its own number
  // unless the graph has graphs inside.
  virtual std::vector<uint32_t> top_level() const;
  virtual std::shared_ptr<Executable> instantiate(uint32_t flags) = 0;
  virtual std::shared_ptr<Device> device() const = 0;
};

class Executable {
 public:
  virtual ~Executable() = default;
  virtual uint32_t flags() const = 0;  // read back from the driver
  virtual void launch(Stream &stream) = 0;
  virtual uint64_t in_flight() const = 0;  // launches submitted and not yet finished, over all streams
  virtual void drain() = 0;  // every launch submitted before the call is finished
  virtual uint64_t device_bytes() const = 0;
  virtual uint64_t host_bytes() const = 0;
  // CUDA only: its CUgraphExec, for native code that launches by itself. It is valid while this lives. Nothing counts
  // those launches, so from then on drain() and the destructor wait for all work of the device.
  virtual uint64_t handle();
};

class Event : public std::enable_shared_from_this<Event> {
 public:
  virtual ~Event() = default;
  virtual void synchronize() = 0;
  virtual bool query() const = 0;
};

class Stream {  // destroying it does not wait: work that it has still runs
 public:
  virtual ~Stream() = default;
  // Submits work, or adds a node when the stream is capturing. Waits while the stream has too much to do already.
  virtual void submit(Node node) = 0;
  virtual void record(const std::shared_ptr<Event> &event) = 0;
  virtual void wait(const std::shared_ptr<Event> &event) = 0;
  virtual void synchronize() = 0;
  virtual bool query() const = 0;
  // Stream capture: between the two calls work becomes nodes of a new template. An event recorded on a capturing
  // stream and waited for on another pulls that other stream into the capture (a fork); it must be joined again.
  virtual void begin_capture() = 0;
  virtual std::shared_ptr<Template> end_capture() = 0;
  virtual bool capturing() const = 0;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  virtual std::string kind() const = 0;  // "host" or "cuda"
  virtual std::string arch() const = 0;  // from the driver: "x86-64-v3", "sm_90"
  virtual bool alive() const = 0;        // false once its context is gone
  virtual uint64_t granularity() const = 0;
  // What may still be mapped, or held by executables; nothing where the device states no limit.
  virtual std::optional<uint64_t> free_bytes() const = 0;
  virtual std::shared_ptr<Reservation> reserve(uint64_t address, uint64_t span) = 0;  // exactly there, or AddressTakenError
  // Loads a kernel image. The module keeps the image (and so its descriptor) for as long as it lives.
  virtual std::shared_ptr<Module> load_module(std::shared_ptr<const SealedImage> image) = 0;
  virtual std::shared_ptr<Stream> create_stream() = 0;
  virtual std::shared_ptr<Event> create_event() = 0;
  virtual std::shared_ptr<Template> create_template() = 0;
  virtual void synchronize() = 0;
  // Waits for all work, then gives threads or the context back. Idempotent; later use is an error, except that what
  // was created may still be destroyed.
  virtual void close() = 0;
  // What was created since the device was opened: templates_created, executables_created, executables_live,
  // launches, nodes_run, modules_loaded, modules_live, reservations_live, bytes_mapped, streams_live ...
  virtual std::map<std::string, uint64_t> counters() const = 0;
};

}  // namespace hg
