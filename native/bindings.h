// How the drivers reach Python. The classes of driver.h are bound once (bind_*.cpp); a device adds its constructor
// (host_bindings.cpp, cuda_module.cpp). All functions below run once, from module.cpp, in that order.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "driver.h"

namespace hg {

void bind_images(nanobind::module_ &m);   // SealedImage, Module, Function
void bind_memory(nanobind::module_ &m);   // Reservation
void bind_streams(nanobind::module_ &m);  // Event, Stream
void bind_graphs(nanobind::module_ &m);   // Node, Template, Executable, build_template
void bind_device(nanobind::module_ &m);   // Device
void register_columns(nanobind::module_ &m);  // check_columns
void register_host(nanobind::module_ &m);
void register_cuda(nanobind::module_ &m);  // CudaDevice and what only it has

using Triple = std::tuple<uint32_t, uint32_t, uint32_t>;
inline Dim3 to_dim(const Triple &t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }
inline Triple to_triple(const Dim3 &d) { return {d.x, d.y, d.z}; }

// A Python buffer, held while a call uses its bytes. Needs the interpreter lock to begin and to end, not in between.
class Bytes {
 public:
  Bytes() = default;
  Bytes(Bytes &&other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Bytes(const Bytes &) = delete;
  ~Bytes() { if (view_.obj) PyBuffer_Release(&view_); }
  bool acquire(PyObject *object) noexcept {
    if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) == 0) return true;
    PyErr_Clear();
    view_.obj = nullptr;
    return false;
  }
  std::span<const uint8_t> span() const { return {static_cast<const uint8_t *>(view_.buf), size_t(view_.len)}; }

 private:
  Py_buffer view_{};
};

// What Python holds of an object that can be closed. Closing, and dropping the last reference, may wait for a device;
// both happen without the interpreter lock, and a call that is under way in another thread keeps the object alive.
// The handle itself is touched with the interpreter lock only.
template <class T>
class Handle {
 public:
  explicit Handle(std::shared_ptr<T> object) : object_(std::move(object)) {}
  Handle(Handle &&) noexcept = default;
  ~Handle() { drop(std::move(object_)); }

  std::shared_ptr<T> get() const {
    if (!object_)
      throw Error("GraphStateError", std::string("using a ") + noun(), "a closed one", "an open one",
                  "it was closed before; keep it open for as long as it is used");
    return object_;
  }
  std::shared_ptr<T> take() { return std::move(object_); }  // closed from now on; null if it was
  bool closed() const { return !object_; }

  static void drop(std::shared_ptr<T> object) {
    if (!object) return;
    nanobind::gil_scoped_release unlocked;
    object.reset();
  }

 private:
  static const char *noun();  // "stream"; one specialisation a type, in its bind_*.cpp
  std::shared_ptr<T> object_;
};

template <> const char *Handle<Reservation>::noun();
template <> const char *Handle<Stream>::noun();
template <> const char *Handle<Template>::noun();
template <> const char *Handle<Executable>::noun();

using StreamHandle = Handle<Stream>;
using TemplateHandle = Handle<Template>;
using ExecutableHandle = Handle<Executable>;

// A reservation's Python views: while one lives, what it looks at is neither unmapped nor made read-only.
class MappedView;
class ReservationHandle : public Handle<Reservation> {
 public:
  using Handle::Handle;
  ReservationHandle(ReservationHandle &&) noexcept = default;
  // Throws UsageError when a view (a writable one, if `only_writable`) touches [offset, offset + size).
  void refuse_views(const char *doing, uint64_t offset, uint64_t size, bool only_writable) const;
  std::unique_ptr<MappedView> view(uint64_t offset, uint64_t size);

 private:
  friend class MappedView;
  std::shared_ptr<std::vector<const MappedView *>> views_ = std::make_shared<std::vector<const MappedView *>>();
};

// Runs `f` without the interpreter lock.
template <class F>
decltype(auto) unlocked(F &&f) {
  nanobind::gil_scoped_release release;
  return std::forward<F>(f)();
}

KernelNode to_kernel(Function &function, const Triple &grid, const Bytes &params, const Triple &block = {1, 1, 1},
                     uint32_t shared_bytes = 0);

}  // namespace hg

namespace nanobind::detail {
template <>
struct type_caster<hg::Bytes> {
  NB_TYPE_CASTER(hg::Bytes, const_name("typing_extensions.Buffer"))
  bool from_python(handle source, uint32_t, cleanup_list *) noexcept { return value.acquire(source.ptr()); }
};
}  // namespace nanobind::detail
