// Reservation, as Python sees it, and the views of its memory.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

#include "bind_cuda.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {

template <>
const char *Handle<Reservation>::noun() { return "reservation"; }

// The exporter behind a memoryview: holds the reservation, so the memory outlives every slice of the view.
class MappedView {
 public:
  MappedView(ReservationHandle &handle, uint64_t offset, uint64_t size)
      : offset(offset), size(size), object_(handle.get()), list_(handle.views_) {
    data = object_->host_pointer(offset, size);
    if (!data)
      throw Error("UsageError", "viewing memory", "a range that the host cannot address, or that is not mapped",
                  "mapped host memory", "map it first; on a device of its own memory use read() and write()");
    writable = object_->writable(offset, size);
    list_->push_back(this);
  }
  MappedView(const MappedView &) = delete;
  ~MappedView() {
    std::erase(*list_, this);
    Handle<Reservation>::drop(std::move(object_));
  }

  void *data;
  uint64_t offset, size;
  bool writable;

 private:
  std::shared_ptr<Reservation> object_;
  std::shared_ptr<std::vector<const MappedView *>> list_;
};

void ReservationHandle::refuse_views(const char *doing, uint64_t offset, uint64_t size, bool only_writable) const {
  size_t held = std::count_if(views_->begin(), views_->end(), [&](const MappedView *view) {
    return view->offset < offset + size && offset < view->offset + view->size && (view->writable || !only_writable);
  });
  if (held)
    throw Error("UsageError", doing, std::to_string(held) + " view(s) of it still held", "none",
                "release the memoryviews first");
}

std::unique_ptr<MappedView> ReservationHandle::view(uint64_t offset, uint64_t size) {
  return std::make_unique<MappedView>(*this, offset, size);
}

namespace {

int get_buffer(PyObject *self, Py_buffer *view, int flags) {
  auto *span = nb::inst_ptr<MappedView>(self);
  return PyBuffer_FillInfo(view, self, span->data, Py_ssize_t(span->size), span->writable ? 0 : 1, flags);
}

PyType_Slot view_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void *>(get_buffer)}, {0, nullptr}};

nb::object make_view(ReservationHandle &self, uint64_t offset, uint64_t size) {
  nb::object exporter = nb::cast(self.view(offset, size));
  return nb::steal(PyMemoryView_FromObject(exporter.ptr()));
}

nb::bytes read(ReservationHandle &self, uint64_t offset, size_t size) {
  auto object = self.get();
  nb::object out = nb::steal(PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size)));
  if (!out.is_valid()) throw nb::python_error();
  char *to = PyBytes_AsString(out.ptr());
  unlocked([&] { object->read(offset, to, size); });
  return nb::bytes(out);
}

void close(ReservationHandle &self) {
  if (self.closed()) return;
  self.refuse_views("closing a reservation", 0, self.get()->span(), false);
  Handle<Reservation>::drop(self.take());
}

}  // namespace

void bind_memory(nb::module_ &m) {
  nb::class_<MappedView>(m, "_MappedView", nb::type_slots(view_slots));

  nb::class_<ReservationHandle>(m, "Reservation", nb::is_weak_referenceable(),
                                "A span of addresses that is ours; parts of it are backed by memory.")
      .def_prop_ro("address", [](ReservationHandle &self) { return self.get()->address(); })
      .def_prop_ro("span", [](ReservationHandle &self) { return self.get()->span(); })
      .def_prop_ro("mapped_bytes", [](ReservationHandle &self) { return self.get()->mapped_bytes(); })
      .def("map", [](ReservationHandle &self, uint64_t offset, uint64_t size, bool exportable) {
        auto object = self.get();
        unlocked([&] {
          if (exportable)
            cuda_reservation(*object, "mapping exportable memory").map(offset, size, {.exportable = true});
          else
            object->map(offset, size);
        });
      }, "offset"_a, "size"_a, "exportable"_a = false,
           "Backs a range with zeroed memory. Both are multiples of the device's granularity.\n\n"
           "exportable (CUDA only): its handle can be passed to another process as a file descriptor.")
      .def("unmap", [](ReservationHandle &self, uint64_t offset, uint64_t size) {
        auto object = self.get();
        self.refuse_views("unmapping memory", offset, size, false);
        unlocked([&] { object->unmap(offset, size); });
      }, "offset"_a, "size"_a, "Waits for the device, then gives the memory back. The addresses stay ours.")
      .def("protect", [](ReservationHandle &self, uint64_t offset, uint64_t size, bool writable) {
        auto object = self.get();
        if (!writable) self.refuse_views("making memory read-only", offset, size, true);
        unlocked([&] { object->protect(offset, size, writable); });
      }, "offset"_a, "size"_a, "writable"_a)
      .def("write", [](ReservationHandle &self, uint64_t offset, const Bytes &data) {
        auto object = self.get();
        unlocked([&] { object->write(offset, data.span().data(), data.span().size()); });
      }, "offset"_a, "data"_a)
      .def("read", &read, "offset"_a, "size"_a)
      .def("fill", [](ReservationHandle &self, uint64_t offset, uint8_t value, uint64_t size) {
        auto object = self.get();
        unlocked([&] { object->fill(offset, value, size); });
      }, "offset"_a, "value"_a, "size"_a)
      .def("write_async", [](ReservationHandle &self, uint64_t offset, PinnedHandle &source, uint64_t at, uint64_t size,
                             StreamHandle &stream) {
        auto to = self.get();
        auto from = source.get();
        auto on = stream.get();
        unlocked([&] {
          cuda_reservation(*to, "copying pinned memory to the device").write_async(offset, *from, at, size, *on);
        });
      }, "offset"_a, "source"_a, "at"_a, "size"_a, "stream"_a,
           "Copies `size` bytes from offset `at` of pinned memory, in stream order (CUDA only).\n\n"
           "While the copy is under way, closing or dropping either memory waits for it, and so does unmapping.\n"
           "UsageError: out of bounds, another device, a stream that is capturing.")
      .def("read_async", [](ReservationHandle &self, uint64_t offset, PinnedHandle &target, uint64_t at, uint64_t size,
                            StreamHandle &stream) {
        auto from = self.get();
        auto to = target.get();
        auto on = stream.get();
        unlocked([&] {
          cuda_reservation(*from, "copying device memory to pinned memory").read_async(offset, *to, at, size, *on);
        });
      }, "offset"_a, "target"_a, "at"_a, "size"_a, "stream"_a,
           "The other way round; the bytes are there once the stream has come past the copy.")
      .def("view", &make_view, "offset"_a, "size"_a, nb::sig("def view(self, offset: int, size: int) -> memoryview"),
           "The memory itself (host only), writable unless protected. It holds the reservation.")
      .def("close", &close, "Unmaps everything. An error while views are held.");
}

}  // namespace hg
