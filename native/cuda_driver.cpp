#include "cuda_driver.h"

#include "cuda_graph.h"
#include "cuda_kernels.h"
#include "cuda_memory.h"
#include "cuda_stream.h"
#include "text.h"

namespace hg {
namespace {

std::shared_ptr<CudaDevice> self(CudaDevice *device) {
  return std::static_pointer_cast<CudaDevice>(device->shared_from_this());
}

// The limits of a context that can be set, by the names that a core has for them.
constexpr std::pair<const char *, CUlimit> kLimits[] = {
    {"heap", CU_LIMIT_MALLOC_HEAP_SIZE},
    {"l2_fetch", CU_LIMIT_MAX_L2_FETCH_GRANULARITY},
    {"l2_persisting", CU_LIMIT_PERSISTING_L2_CACHE_SIZE},
    {"pending_launches", CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT},
    {"printf", CU_LIMIT_PRINTF_FIFO_SIZE},
    {"stack", CU_LIMIT_STACK_SIZE},
    {"sync_depth", CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH},
};

}  // namespace

CudaDevice::CudaDevice(int index) : context_(std::make_shared<CudaContext>(index)), index_(index) {}

uint64_t CudaDevice::granularity() const { return cuda_granularity(*context_); }

std::optional<uint64_t> CudaDevice::free_bytes() const { return cuda_free_bytes(*context_); }

std::shared_ptr<Reservation> CudaDevice::reserve(uint64_t address, uint64_t span) {
  return std::make_shared<CudaReservation>(context_, address, span);
}

std::shared_ptr<Module> CudaDevice::load_module(std::shared_ptr<const SealedImage> image) {
  return std::make_shared<CudaModule>(context_, std::move(image));
}

std::shared_ptr<Stream> CudaDevice::create_stream() { return std::make_shared<CudaStream>(self(this)); }

std::shared_ptr<Event> CudaDevice::create_event() { return std::make_shared<CudaEvent>(context_); }

std::shared_ptr<Template> CudaDevice::create_template() { return std::make_shared<CudaTemplate>(self(this)); }

std::string CudaDevice::name() const {
  char name[256] = {};
  context_->check(context_->api().cuDeviceGetName(name, sizeof name, context_->device()), "cuDeviceGetName",
                  "reading the name of the device");
  return name;
}

int CudaDevice::attribute(CUdevice_attribute attribute, const char *doing) const {
  int value = 0;
  context_->check(context_->api().cuDeviceGetAttribute(&value, attribute, context_->device()), "cuDeviceGetAttribute",
                  doing);
  return value;
}

int CudaDevice::processors() const {
  return attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "reading the number of multiprocessors");
}

int CudaDevice::shared_optin() const {
  return attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, "reading the shared memory of a block");
}

int CudaDevice::driver_version() const {
  int version = 0;
  context_->check(context_->api().cuDriverGetVersion(&version), "cuDriverGetVersion", "reading the driver's version");
  return version;
}

std::map<std::string, uint64_t> CudaDevice::limits() const {
  const char *doing = "reading the limits of the context";
  CudaCurrent current(*context_, doing);
  std::map<std::string, uint64_t> limits;
  for (const auto &[name, limit] : kLimits) {
    size_t value = 0;
    const CUresult result = context_->api().cuCtxGetLimit(&value, limit);
    if (result == CUDA_ERROR_UNSUPPORTED_LIMIT || result == CUDA_ERROR_INVALID_VALUE) continue;
    context_->check(result, "cuCtxGetLimit", doing);
    limits[name] = value;
  }
  return limits;
}

void CudaDevice::set_limit(const std::string &name, uint64_t value) {
  const std::string doing = text("setting the limit ", name, " of the context to ", value);
  for (const auto &[known, limit] : kLimits) {
    if (name != known) continue;
    CudaCurrent current(*context_, doing.c_str());
    return context_->check(context_->api().cuCtxSetLimit(limit, value), "cuCtxSetLimit", doing.c_str());
  }
  throw Error("UsageError", doing, "a name that no limit has", "a name that limits() gives", "correct the name");
}

std::shared_ptr<Module> CudaDevice::borrow_module(const std::shared_ptr<Function> &function) {
  const auto ours = cuda_function(function);
  if (auto module = ours->module()) return module;
  const std::string doing = "looking up the module of " + ours->name();
  CudaCurrent current(*context_, doing.c_str());
  CUmodule module = nullptr;
  context_->check(context_->api().cuFuncGetModule(&module, ours->handle()), "cuFuncGetModule", doing.c_str());
  return std::make_shared<CudaModule>(context_, module);
}

std::shared_ptr<Template> CudaDevice::borrow_template(uint64_t graph) {
  if (!graph)
    throw Error("UsageError", "borrowing a graph", "no graph (0)", "a CUgraph handle",
                "with PyTorch: CUDAGraph(keep_graph=True), then raw_cuda_graph()");
  return CudaTemplate::borrow(self(this), reinterpret_cast<CUgraph>(graph));
}

std::shared_ptr<Stream> CudaDevice::borrow_stream(uint64_t stream) {
  return std::make_shared<CudaStream>(self(this), reinterpret_cast<CUstream>(stream));
}

std::pair<uint64_t, uint64_t> CudaDevice::capture_info(uint64_t stream) const {
  const auto [graph, nodes] = hg::capture_info(*context_, reinterpret_cast<CUstream>(stream));
  return {reinterpret_cast<uint64_t>(graph), nodes};
}

void CudaDevice::synchronize() {
  CudaCurrent current(*context_, "waiting for the device");
  context_->check(context_->await_work(), "cuCtxSynchronize", "waiting for the device");
}

void CudaDevice::close() {
  if (context_->closed()) return;
  if (context_->alive()) synchronize();
  context_->close();
}

std::map<std::string, uint64_t> CudaDevice::counters() const {
  const CudaCounters &c = context_->counters;
  return {{"templates_created", c.templates_created},
          {"templates_live", c.templates_live},
          {"executables_created", c.executables_created},
          {"executables_live", c.executables_live},
          {"launches", c.launches},
          {"nodes_run", c.nodes_run},
          {"modules_loaded", c.modules_loaded},
          {"modules_live", c.modules_live},
          {"reservations_live", c.reservations_live},
          {"bytes_mapped", c.bytes_mapped},
          {"streams_live", c.streams_live},
          {"events_live", c.events_live},
          {"pinned_live", c.pinned_live},
          {"pinned_bytes", c.pinned_bytes}};
}

}  // namespace hg
