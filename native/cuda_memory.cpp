#include "cuda_memory.h"

#include "cuda_stream.h"
#include "text.h"

namespace hg {
namespace {

constexpr uint64_t kSmallestHinted = 32ull << 20;  // driver 580.159 on an H200 puts what is smaller wherever it likes

CUmemAllocationProp properties(const CudaContext &context) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device()};
  return prop;
}

}  // namespace

uint64_t cuda_granularity(const CudaContext &context) {
  const char *doing = "reading the mapping granularity";
  CudaCurrent current(context, doing);
  const CUmemAllocationProp prop = properties(context);
  size_t bytes = 0;
  context.check(context.api().cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                "cuMemGetAllocationGranularity", doing);
  return bytes;
}

uint64_t cuda_free_bytes(const CudaContext &context) {
  const char *doing = "reading how much memory is free";
  CudaCurrent current(context, doing);
  size_t free = 0, total = 0;
  context.check(context.api().cuMemGetInfo(&free, &total), "cuMemGetInfo", doing);
  return free;
}

CudaReservation::CudaReservation(std::shared_ptr<CudaContext> context, uint64_t address, uint64_t span)
    : context_(std::move(context)), address_(address), span_(span), reserved_(std::max(span, kSmallestHinted)) {
  const std::string doing = "reserving " + std::to_string(span) + " bytes at " + hex(address);
  const uint64_t unit = cuda_granularity(*context_);
  if (!span || span % unit || !address || address % unit || address + span < address)
    throw Error("UsageError", doing, text(span, " bytes at ", hex(address)),
                text("non-zero multiples of ", unit, ", the device's granularity"),
                "the bases of regions are in core.format");
  CudaCurrent current(*context_, doing.c_str());
  CUdeviceptr given = 0;
  context_->check(context_->api().cuMemAddressReserve(&given, reserved_, 0, address, 0), "cuMemAddressReserve",
                  doing.c_str());
  if (given != address) {
    context_->api().cuMemAddressFree(given, reserved_);
    throw Error("AddressTakenError", doing, "the driver gave " + hex(given), hex(address),
                "reserve before anything else in the process maps memory, or use another slot");
  }
  ++context_->counters.reservations_live;
}

CudaReservation::~CudaReservation() {
  auto give_back = [context = context_.get(), address = address_, reserved = reserved_, mapped = mapped_bytes(),
                    mappings = std::move(mappings_)] {
    if (context->alive()) {
      for (const auto &[offset, mapping] : mappings) {
        context->api().cuMemUnmap(address + offset, mapping.size);
        context->api().cuMemRelease(mapping.handle);
      }
      context->api().cuMemAddressFree(address, reserved);
    }
    context->counters.bytes_mapped -= mapped;
    --context->counters.reservations_live;
  };
  if (CudaCurrentIfAlive current(*context_); current) {
    CudaRelaxed relaxed(*context_);  // a stream of this thread may be capturing
    CUresult waited = CUDA_SUCCESS;
    // holds: R4 tests/device/test_cuda_pinned.py::test_dropped_reservation_waits_for_kernels_and_copies
    waited = context_->await_work();
    if (waited == CUDA_SUCCESS) {
      give_back();
      return;
    }
  }
  if (!context_->alive()) {
    give_back();
    return;
  }
  // Nothing is taken from under work that may still run.
  // holds: R4 tests/device/test_cuda_captures.py::test_memory_dropped_while_another_thread_captures_goes_after_its_work
  context_->leave(std::move(give_back));
}

uint64_t CudaReservation::mapped_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t total = 0;
  for (const auto &[offset, mapping] : mappings_) total += mapping.size;
  return total;
}

void CudaReservation::check_range(uint64_t offset, uint64_t size, const char *doing) const {
  if (offset > span_ || size > span_ - offset)
    throw Error("UsageError", doing, "offset " + std::to_string(offset) + ", size " + std::to_string(size),
                "a range inside the " + std::to_string(span_) + " bytes reserved", "correct the range");
}

void CudaReservation::set_access(uint64_t offset, uint64_t size, bool writable, const char *doing) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, context_->device()};
  access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  context_->check(context_->api().cuMemSetAccess(address_ + offset, size, &access, 1), "cuMemSetAccess", doing);
}

void CudaReservation::map(uint64_t offset, uint64_t size, Backing backing) {
  const char *doing = "mapping device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  std::lock_guard lock(mutex_);
  const CudaApi &api = context_->api();
  CUmemAllocationProp prop = properties(*context_);
  if (backing.exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  context_->check(api.cuMemCreate(&handle, size, &prop, 0), "cuMemCreate", doing);
  auto keep = [&] {
    mappings_[offset] = {size, handle, true};
    context_->counters.bytes_mapped += size;
  };
  bool mapped = false, filling = false;
  try {
    context_->check(api.cuMemMap(address_ + offset, size, 0, handle, 0), "cuMemMap", doing);
    mapped = true;
    set_access(offset, size, true, doing);
    if (backing.zeroed) {
      // What refuses to wait does so before there is a fill that might still run when the memory is taken back.
      context_->settle(doing);  // holds: R4 tests/device/test_cuda_driver.py::test_memory_that_cannot_be_zeroed_is_not_taken_back_while_it_is_zeroed
      context_->check(api.cuMemsetD8(address_ + offset, 0, size), "cuMemsetD8", doing);
      filling = true;
      context_->settle(doing);
    }
  } catch (const Error &) {
    if (filling && !filled()) {  // it goes when it is unmapped, or with the reservation
      keep();
      throw;
    }
    if (mapped) api.cuMemUnmap(address_ + offset, size);
    api.cuMemRelease(handle);
    throw;
  }
  keep();
}

bool CudaReservation::filled() const {
  CudaRelaxed relaxed(*context_);
  const CUresult waited = context_->api().cuStreamSynchronize(nullptr);
  context_->note(waited);
  return waited == CUDA_SUCCESS || !context_->alive();
}

std::pair<CudaReservation::Mappings::iterator, CudaReservation::Mappings::iterator> CudaReservation::whole(
    uint64_t offset, uint64_t size, const char *doing) {
  const auto first = mappings_.lower_bound(offset);
  auto last = first;
  uint64_t at = offset;
  while (last != mappings_.end() && last->first == at && at < offset + size) at += (last++)->second.size;
  if (at != offset + size)
    throw Error("UsageError", doing, "offset " + std::to_string(offset) + ", size " + std::to_string(size),
                "a range made of whole mappings", "use the ranges that were mapped");
  return {first, last};
}

void CudaReservation::unmap(uint64_t offset, uint64_t size) {
  const char *doing = "unmapping device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  CudaRelaxed relaxed(*context_);
  // holds: R4 tests/device/test_cuda_pinned.py::test_unmapping_waits_for_kernels_and_copies
  context_->check(context_->await_work(), "cuCtxSynchronize", doing);
  std::lock_guard lock(mutex_);
  auto [at, last] = whole(offset, size, doing);
  while (at != last) {
    const Mapping mapping = at->second;
    context_->check(context_->api().cuMemUnmap(address_ + at->first, mapping.size), "cuMemUnmap", doing);
    at = mappings_.erase(at);
    context_->counters.bytes_mapped -= mapping.size;
    context_->check(context_->api().cuMemRelease(mapping.handle), "cuMemRelease", doing);
  }
}

void CudaReservation::protect(uint64_t offset, uint64_t size, bool writable) {
  const char *doing = "protecting device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  std::lock_guard lock(mutex_);
  auto [at, last] = whole(offset, size, doing);
  for (; at != last; ++at) {
    set_access(at->first, at->second.size, writable, doing);
    at->second.writable = writable;
  }
}

bool CudaReservation::writable(uint64_t offset, uint64_t size) const {
  std::lock_guard lock(mutex_);
  auto at = mappings_.upper_bound(offset);
  if (at != mappings_.begin()) --at;
  uint64_t covered = offset;  // [offset, covered) is mapped and writable
  for (; at != mappings_.end() && at->first <= covered && covered < offset + size; ++at) {
    if (at->first + at->second.size <= covered) continue;
    if (!at->second.writable) return false;
    covered = at->first + at->second.size;
  }
  return covered >= offset + size;
}

void CudaReservation::write(uint64_t offset, const void *from, size_t size) {
  const char *doing = "writing device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  context_->check(context_->api().cuMemcpyHtoD(address_ + offset, from, size), "cuMemcpyHtoD", doing);
  context_->settle(doing);  // holds: R25 tests/device/test_cuda_driver.py::test_what_is_launched_next_sees_what_was_written
}

void CudaReservation::read(uint64_t offset, void *to, size_t size) {
  const char *doing = "reading device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  context_->check(context_->api().cuMemcpyDtoH(to, address_ + offset, size), "cuMemcpyDtoH", doing);
}

void CudaReservation::fill(uint64_t offset, uint8_t value, uint64_t size) {
  const char *doing = "filling device memory";
  check_range(offset, size, doing);
  CudaCurrent current(*context_, doing);
  context_->check(context_->api().cuMemsetD8(address_ + offset, value, size), "cuMemsetD8", doing);
  context_->settle(doing);  // holds: R25 tests/device/test_cuda_driver.py::test_what_is_launched_next_sees_what_was_written
}

template <class Copy>
void CudaReservation::copy_async(uint64_t offset, const PinnedMemory &host, uint64_t at, uint64_t size, Stream &stream,
                                 const char *doing, Copy copy) {
  check_range(offset, size, doing);
  host.check_range(at, size, doing);
  CudaStream &on = cuda_stream(stream);
  if (on.context() != context_ || host.context() != context_)
    throw Error("UsageError", doing, "memory or a stream of another device", "all three of one device",
                "create the stream and the pinned memory on the device of the reservation");
  if (!size) return;
  if (on.capturing())
    throw Error("UsageError", doing, "a stream that is capturing", "a stream that is not",
                "copy before the capture: a graph must not read memory of the host");
  CudaCurrent current(*context_, doing);
  CudaRelaxed relaxed(*context_);  // another stream of this thread may be capturing
  host.copies().forget_done();
  auto done = std::make_shared<CudaEvent>(context_);
  copy();
  if (const CUresult result = context_->api().cuEventRecord(done->handle(), on.handle()); result != CUDA_SUCCESS) {
    // Nothing else would tell when the copy is done.
    if (context_->api().cuStreamSynchronize(on.handle()) != CUDA_SUCCESS) host.copies().add_unmarked();
    context_->check(result, "cuEventRecord", doing);
  }
  host.copies().add(done);
}

void CudaReservation::write_async(uint64_t offset, const PinnedMemory &source, uint64_t at, uint64_t size,
                                  Stream &stream) {
  const char *doing = "copying pinned memory to the device";
  copy_async(offset, source, at, size, stream, doing, [&] {
    context_->check(context_->api().cuMemcpyHtoDAsync(address_ + offset, source.data() + at, size,
                                                      cuda_stream(stream).handle()),
                    "cuMemcpyHtoDAsync", doing);
  });
}

void CudaReservation::read_async(uint64_t offset, const PinnedMemory &target, uint64_t at, uint64_t size,
                                 Stream &stream) {
  const char *doing = "copying device memory to pinned memory";
  copy_async(offset, target, at, size, stream, doing, [&] {
    context_->check(context_->api().cuMemcpyDtoHAsync(target.data() + at, address_ + offset, size,
                                                      cuda_stream(stream).handle()),
                    "cuMemcpyDtoHAsync", doing);
  });
}

CudaReservation &cuda_reservation(Reservation &reservation, const char *doing) {
  auto *ours = dynamic_cast<CudaReservation *>(&reservation);
  if (!ours)
    throw Error("UsageError", doing, "memory of another kind of device", "a reservation of a CUDA device",
                "on the host device use write(), read() or view()");
  return *ours;
}

}  // namespace hg
