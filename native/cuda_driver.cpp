#include "cuda_driver.h"

#include "cuda_graph.h"
#include "cuda_kernels.h"
#include "cuda_memory.h"
#include "cuda_stream.h"

namespace hg {
namespace {

std::shared_ptr<CudaDevice> self(CudaDevice *device) {
  return std::static_pointer_cast<CudaDevice>(device->shared_from_this());
}

}  // namespace

CudaDevice::CudaDevice(int index) : context_(std::make_shared<CudaContext>(index)) {}

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

void CudaDevice::synchronize() {
  CudaCurrent current(*context_, "waiting for the device");
  context_->check(context_->api().cuCtxSynchronize(), "cuCtxSynchronize", "waiting for the device");
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
