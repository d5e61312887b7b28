// The host device's constructor, and what is about this machine and the status page.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "host_driver.h"
#include "host_modules.h"
#include "host_status.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {
namespace {

std::shared_ptr<HostDevice> open_device(uint32_t workers, std::vector<int> cpus, uint64_t memory_limit,
                                        uint32_t spin_us, int status_fd) {
  return unlocked([&] {
    return HostDevice::open({workers, std::move(cpus), memory_limit, std::chrono::microseconds(spin_us), status_fd});
  });
}

// Node numbers as Python sees them: -1 for a kernel that belongs to no graph.
int64_t node_number(uint32_t node) { return node == kNoNode ? -1 : int64_t(node); }

nb::object fault_of(const Bytes &status) {
  auto fault = read_fault(status.span());
  if (!fault) return nb::none();
  nb::dict out;
  out["signal"] = fault->signal;
  out["address"] = fault->address;
  out["launch"] = fault->launch;
  out["node"] = node_number(fault->node);
  out["worker"] = fault->worker;
  return out;
}

nb::list running_of(const Bytes &status) {
  nb::list out;
  for (const Running &it : read_running(status.span())) {
    nb::dict one;
    one["worker"] = it.worker;
    one["launch"] = it.launch;
    one["node"] = node_number(it.node);
    out.append(one);
  }
  return out;
}

}  // namespace

void register_host(nb::module_ &m) {
  nb::class_<HostDevice, Device>(
      m, "HostDevice",
      "The CPU as a device.\n\n"
      "workers: threads that run a launch, its stream's included; 0: one a processor. cpus: where they run; with one\n"
      "or more for each worker, each worker has its own. memory_limit: bytes that may be mapped or held by\n"
      "executables (OutOfMemoryError beyond), 0: none. spin_us: how long a worker spins before it sleeps. status_fd:\n"
      "a shared file of at least one page where the running launch and node of each worker stand and a fault is\n"
      "recorded.")
      .def(nb::new_(&open_device), "workers"_a = 0, "cpus"_a = nb::tuple(), "memory_limit"_a = 0, "spin_us"_a = 50,
           "status_fd"_a = -1)
      .def_prop_ro("workers", &HostDevice::workers)
      .def("inject_fault", &HostDevice::inject_fault, "launch"_a, "node"_a,
           "The node of the launch-th launch from now on faults, as by SIGSEGV.");

  m.def("host_levels", &host_levels, "Instruction-set levels this processor can run, best first.");
  m.def("read_fault", &fault_of, "status"_a, nb::sig("def read_fault(status: typing_extensions.Buffer) -> dict[str, int] | None"),
        "The fault recorded in a status page: signal, address, launch, node (-1: no graph's), worker.");
  m.def("read_running", &running_of, "status"_a,
        nb::sig("def read_running(status: typing_extensions.Buffer) -> list[dict[str, int]]"),
        "What the workers of a status page run, or ran when the process ended: worker, launch, node.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { unlocked(close_host_devices); }));
}

}  // namespace hg
