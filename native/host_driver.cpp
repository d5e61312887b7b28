#include "host_driver.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "host_graph.h"
#include "host_modules.h"
#include "host_stream.h"
#include "host_worker.h"

namespace hg {
namespace {

constexpr uint32_t kMaxWorkers = 1024;

std::atomic<uint64_t> forks{0};

void count_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }); });
}

// Every open device, for the exit hook. Never destroyed: devices may outlive static objects.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<HostDevice>> devices;
};
Registry &registry() {
  static Registry *it = new Registry;
  return *it;
}

cpu_set_t allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    throw Error("DriverError", "asking for the processors of this process", "sched_getaffinity failed",
                "a processor set", "this machine has more processors than the C library's set holds");
  return set;
}

uint32_t choose_workers(const HostOptions &options) {
  constexpr const char *doing = "opening the host device";
  cpu_set_t allowed = allowed_cpus();
  for (int cpu : options.cpus)
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed))
      throw Error("UsageError", doing, "CPU " + std::to_string(cpu), "a CPU that this process may use",
                  "see taskset -p, or the container's CPU set");
  if (options.workers > kMaxWorkers)
    throw Error("UsageError", doing, std::to_string(options.workers) + " workers", "at most 1024",
                "one for each processor is the most that helps");
  if (options.workers) return options.workers;
  return uint32_t(options.cpus.empty() ? CPU_COUNT(&allowed) : options.cpus.size());
}

}  // namespace

std::shared_ptr<HostDevice> HostDevice::open(HostOptions options) {
  auto device = std::make_shared<HostDevice>(std::move(options));
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().devices, [](const auto &weak) { return weak.expired(); });
  registry().devices.push_back(device);
  return device;
}

HostDevice::HostDevice(HostOptions options)
    : birth_((count_forks(), forks.load())), page_(options.status_fd), budget_(options.memory_limit),
      workers_(choose_workers(options)) {
  install_fault_handler();
  pool_ = std::make_unique<Pool>(page_, PoolOptions{workers_, options.cpus, options.spin});
}

HostDevice::~HostDevice() {
  if (forked()) {  // its threads are not in this process, and what they waited for cannot be destroyed
    (void)pool_.release();
    (void)new auto(std::move(queues_));
  } else {
    close();
  }
}

bool HostDevice::forked() const { return forks.load(std::memory_order_relaxed) != birth_; }

void HostDevice::check_process(const char *doing) const {
  if (forked())
    throw Error("UsageError", doing, "process " + std::to_string(getpid()) + ", forked from the one that opened the device",
                "the process that opened the device",
                "workers do not survive a fork: open a device in the child, or start it with spawn");
}

void HostDevice::check_open(const char *doing) const {
  check_process(doing);
  if (closed_.load())
    throw Error("UsageError", doing, "a closed device", "an open device", "open a device");
}

std::string HostDevice::arch() const { return host_levels().front(); }

uint64_t HostDevice::granularity() const { return uint64_t(sysconf(_SC_PAGESIZE)); }

std::shared_ptr<Reservation> HostDevice::reserve(uint64_t address, uint64_t span) {
  check_open("reserving addresses");
  return std::make_shared<HostReservation>(std::static_pointer_cast<HostDevice>(shared_from_this()), address, span);
}

std::shared_ptr<Module> HostDevice::load_module(std::shared_ptr<const SealedImage> image) {
  check_open("loading a kernel module");
  return load_host_module(std::move(image), counters_);
}

std::shared_ptr<Stream> HostDevice::create_stream() {
  constexpr const char *doing = "creating a stream";
  check_process(doing);
  std::lock_guard lock(mutex_);
  check_open(doing);  // with the lock held: close() stops the streams that it sees
  std::erase_if(queues_, [](const auto &queue) { return queue->retired(); });
  auto queue = std::make_shared<StreamQueue>(*pool_, page_, streams_made_++);
  queues_.push_back(queue);
  return std::make_shared<HostStream>(std::static_pointer_cast<HostDevice>(shared_from_this()), std::move(queue));
}

std::shared_ptr<Event> HostDevice::create_event() {
  check_open("creating an event");
  return std::make_shared<HostEvent>(std::static_pointer_cast<HostDevice>(shared_from_this()));
}

std::shared_ptr<Template> HostDevice::create_template() {
  check_open("creating a template");
  return std::make_shared<HostTemplate>(std::static_pointer_cast<HostDevice>(shared_from_this()));
}

HostStream &HostDevice::own_stream(Stream &stream, const char *doing) const {
  auto *own = dynamic_cast<HostStream *>(&stream);
  if (!own || own->device() != this)
    throw Error("UsageError", doing, "a stream of another device", "a stream of the executable's device",
                "create it on the same device");
  return *own;
}

void HostDevice::await_idle() {
  if (forked()) return;
  std::vector<std::shared_ptr<StreamQueue>> queues;
  {
    std::lock_guard lock(mutex_);
    queues = queues_;
  }
  for (auto &queue : queues) queue->await_all();
}

void HostDevice::synchronize() {
  check_process("waiting for the device");
  await_idle();
}

void HostDevice::close() {
  if (forked()) return;
  std::vector<std::shared_ptr<StreamQueue>> queues;
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    queues = queues_;
  }
  for (auto &queue : queues) queue->stop();
  pool_->stop();
}

void HostDevice::inject_fault(uint64_t launch, uint32_t node) {
  check_open("planting a fault");
  std::lock_guard lock(mutex_);
  injections_.push_back({launches() + launch, node});
  injecting_.store(true);
}

std::shared_ptr<const Schedule> HostDevice::injected(const Schedule &schedule, uint64_t launch) {
  if (!injecting_.load(std::memory_order_relaxed)) return nullptr;
  std::lock_guard lock(mutex_);
  auto found = std::find_if(injections_.begin(), injections_.end(), [&](const auto &it) { return it.launch == launch; });
  if (found == injections_.end()) return nullptr;
  uint32_t node = found->node;
  injections_.erase(found);
  const auto &all = schedule.operations;
  if (std::none_of(all.begin(), all.end(), [&](const Operation &operation) { return operation.node == node; }))
    throw Error("UsageError", "planting a fault", "node " + std::to_string(node),
                "a node of the launched graph that runs something", "count nodes in construction order");
  return std::make_shared<const Schedule>(with_kernel(schedule, node, fault_kernel));
}

std::map<std::string, uint64_t> HostDevice::counters() const {
  const HostCounters &c = *counters_;
  return {{"templates_created", c.templates_created}, {"executables_created", c.executables_created},
          {"executables_live", c.executables_live},   {"executable_bytes", c.executable_bytes},
          {"launches", c.launches},                   {"nodes_run", c.nodes_run},
          {"modules_loaded", c.modules_loaded},       {"modules_live", c.modules_live},
          {"reservations_live", c.reservations_live}, {"bytes_mapped", c.bytes_mapped},
          {"streams_live", c.streams_live}};
}

void close_host_devices() {
  std::vector<std::shared_ptr<HostDevice>> open;
  {
    std::lock_guard lock(registry().mutex);
    for (auto &weak : registry().devices)
      if (auto device = weak.lock()) open.push_back(std::move(device));
  }
  for (auto &device : open) device->close();
}

}  // namespace hg
