// The extension `heliograph._native`: what it is, how its errors reach Python, and which parts it is made of.
#include <cuda.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;

namespace hg {
namespace {

// Raises the class of heliograph.errors that the error names, with its four texts and the nodes that it is about.
void translate(const std::exception_ptr &pointer, void *) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error &error) {
    try {
      nb::object type = nb::module_::import_("heliograph.errors").attr(error.type);
      nb::object value = type(error.doing, nb::arg("found") = error.found, nb::arg("required") = error.required,
                              nb::arg("hint") = error.hint);
      if (!error.nodes.empty()) value.attr("nodes") = nb::tuple(nb::cast(error.nodes));
      PyErr_SetObject(type.ptr(), value.ptr());
    } catch (nb::python_error &failed) {
      failed.restore();
    }
  }
}

nb::dict build_facts() {
  nb::dict facts;
  facts["compiler"] = HELIOGRAPH_COMPILER;
  facts["compiler_version"] = HELIOGRAPH_COMPILER_VERSION;
  facts["flags"] = HELIOGRAPH_FLAGS;
  facts["schema"] = std::to_string(HELIOGRAPH_SCHEMA).c_str();
  facts["cuda_headers"] = std::to_string(CUDA_VERSION).c_str();
  return facts;
}

}  // namespace
}  // namespace hg

NB_MODULE(_native, m) {
  m.attr("SCHEMA") = HELIOGRAPH_SCHEMA;
  m.attr("BUILD") = hg::build_facts();
  m.doc() = "The drivers: fixed-address memory, kernel modules, streams, templates and executables.";
  // Objects that Python never collects (a reference in a thread that outlives the interpreter) are no leak of ours:
  // the exit hook of each device has waited for its work by then.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(hg::translate);
  hg::bind_images(m);
  hg::bind_memory(m);
  hg::bind_streams(m);
  hg::bind_graphs(m);
  hg::bind_device(m);
  hg::register_columns(m);
  hg::register_host(m);
  hg::register_cuda(m);
}
