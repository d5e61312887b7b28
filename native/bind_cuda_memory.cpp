// Pinned memory and pools of a CUDA device, as Python sees them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind_cuda.h"
#include "cuda_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

template <>
const char *Handle<PinnedMemory>::noun() { return "pinned memory"; }

namespace {

// A pool ends with its Python object: whatever PyTorch still has of it stays as it is, and nothing new is handed out.
class PoolHandle {
 public:
  explicit PoolHandle(std::shared_ptr<CudaPool> pool) : pool_(std::move(pool)) {}
  PoolHandle(PoolHandle &&) noexcept = default;
  ~PoolHandle() {
    if (!pool_) return;
    nb::gil_scoped_release unlocked;
    pool_->leave();
    pool_.reset();
  }
  CudaPool &get() const { return *pool_; }
  void close() {
    nb::gil_scoped_release unlocked;
    pool_->close();
  }

 private:
  std::shared_ptr<CudaPool> pool_;
};

int get_pinned(PyObject *self, Py_buffer *view, int flags) {
  auto *handle = nb::inst_ptr<PinnedHandle>(self);
  if (handle->closed()) {
    PyErr_SetString(PyExc_BufferError, "this pinned memory was closed");
    return -1;
  }
  const auto memory = handle->get();
  const int failed = PyBuffer_FillInfo(view, self, memory->data(), Py_ssize_t(memory->size()), 0, flags);
  if (!failed) ++handle->views;
  return failed;
}

void release_pinned(PyObject *self, Py_buffer *) { --nb::inst_ptr<PinnedHandle>(self)->views; }

PyType_Slot pinned_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(get_pinned)},
                              {Py_bf_releasebuffer, reinterpret_cast<void *>(release_pinned)},
                              {0, nullptr}};

void close_pinned(PinnedHandle &self) {
  if (self.views)
    throw Error("UsageError", "closing pinned memory", std::to_string(self.views) + " view(s) of it still held", "none",
                "release the memoryviews first");
  Handle<PinnedMemory>::drop(self.take());
}

std::string error_text(const PoolHandle &self) {
  const auto error = self.get().error();
  return error ? std::string(error->what()) : std::string();
}

void check_pool(const PoolHandle &self) {
  if (auto error = self.get().error()) throw *error;
}

}  // namespace

void bind_cuda_memory(nb::module_ &m, nb::class_<CudaDevice, Device> &device) {
  nb::class_<PinnedHandle>(m, "PinnedMemory", nb::is_weak_referenceable(), nb::type_slots(pinned_slots),
                           nb::sig("class PinnedMemory(Buffer)"),
                           "Page-locked memory of the host: a writable buffer of bytes that a device copies from and "
                           "to in stream order.")
      .def_prop_ro("size", [](PinnedHandle &self) { return self.get()->size(); }, "Bytes.")
      .def_prop_ro("address", [](PinnedHandle &self) { return reinterpret_cast<uint64_t>(self.get()->data()); })
      .def("__len__", [](PinnedHandle &self) { return self.get()->size(); })
      .def("close", &close_pinned,
           "Frees it, once copies under way are done. Idempotent; an error while views are held.");

  nb::class_<PoolHandle>(m, "PoolArena", nb::is_weak_referenceable(),
                         "Memory of a reservation for PyTorch's pluggable allocator.\n\n"
                         "The same calls in the same order get the same addresses: multiples of 512, the lowest free\n"
                         "one first, 256 bytes or more apart. Memory is mapped when it is first needed, also in a\n"
                         "stream capture, is not zeroed, and stays mapped and readable when it is freed. Keep the\n"
                         "pool for as long as an allocator uses its functions. It ends with close() or with this object;\n"
                         "in the second case its memory stays until PyTorch has given the last piece back.")
      .def_prop_ro("name", [](PoolHandle &self) { return self.get().name(); })
      .def_prop_ro("address", [](PoolHandle &self) { return self.get().address(); }, "Where its span begins.")
      .def_prop_ro("span", [](PoolHandle &self) { return self.get().span(); }, "Bytes of addresses.")
      .def_prop_ro("alloc_address", [](PoolHandle &self) { return self.get().alloc_address(); },
                   "Address of its function void *(ssize_t bytes, int device, cudaStream_t). Null: see error.")
      .def_prop_ro("free_address", [](PoolHandle &self) { return self.get().free_address(); },
                   "Address of its function void (void *, ssize_t bytes, int device, cudaStream_t).")
      .def_prop_ro("peak", [](PoolHandle &self) { return self.get().peak(); },
                   "Bytes that the span needed so far, padding included.")
      .def_prop_ro("mapped_bytes", [](PoolHandle &self) { return self.get().mapped_bytes(); })
      .def("live", [](PoolHandle &self) { return self.get().live(); }, "(address, bytes) of what is out, ascending.")
      .def_prop_ro("error", &error_text, "What the last call that failed found, or an empty string.")
      .def("check", &check_pool, "Raises that error, if there is one: OutOfMemoryError, DriverError, UsageError.")
      .def("close", &PoolHandle::close,
           "Nothing more is handed out, and its memory ends with the reservation, whoever still uses it. Pieces may\n"
           "still be freed. Idempotent.");

  device
      .def("pinned", [](CudaDevice &self, uint64_t size) {
        return PinnedHandle(unlocked([&] { return std::make_shared<PinnedMemory>(self.context(), size); }));
      }, "size"_a, "Page-locked memory of the host, in bytes.")
      .def("pool", [](CudaDevice &self, ReservationHandle &reservation, uint64_t offset, uint64_t span,
                      std::string name) {
        auto object = reservation.get();
        if (cuda_reservation(*object, "making a pool").context() != self.context())
          throw Error("UsageError", "making pool " + name, "memory of another device", "a reservation of this device",
                      "reserve on the device that the pool is for");
        return PoolHandle(unlocked([&] { return CudaPool::open(object, offset, span, std::move(name)); }));
      }, "reservation"_a, "offset"_a, "span"_a, "name"_a,
           "A pool over [offset, offset + span) of a reservation, of which nothing is mapped. At most 4 at a time.");
}

}  // namespace hg
