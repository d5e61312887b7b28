// SealedImage, Module and Function, as Python sees them.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "sealed_image.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hg {
namespace {

ImagePlace to_place(const std::string &name) {
  if (name == "memory") return ImagePlace::memory;
  if (name == "runtime") return ImagePlace::runtime;
  if (name == "cache") return ImagePlace::cache;
  throw Error("UsageError", "sealing a kernel image", "place " + name, "memory, runtime or cache",
              "memory is right unless the machine's policy refuses it");
}

std::shared_ptr<SealedImage> seal(const std::string &name, const Bytes &data, const std::string &place,
                                  const std::string &folder) {
  ImagePlace where = to_place(place);
  return unlocked([&] { return std::make_shared<SealedImage>(name, data.span(), where, folder); });
}

nb::tuple offsets(const Function &function) {
  nb::list out;
  for (uint32_t at : function.pointer_offsets()) out.append(at);
  return nb::tuple(out);
}

}  // namespace

void bind_images(nb::module_ &m) {
  nb::class_<SealedImage>(m, "SealedImage",
                          "A kernel image that nobody can change any more: written, sealed, then readable by "
                          "descriptor for hashing.\n\nplace: memory (a sealed memfd), runtime (an unnamed file in "
                          "`folder`), cache (a file in `folder`, unlinked).")
      .def(nb::new_(&seal), "name"_a, "data"_a, "place"_a = "memory", "folder"_a = "")
      .def("fileno", &SealedImage::descriptor, "The descriptor; open for as long as this object or a module made of it.")
      .def_prop_ro("size", &SealedImage::size)
      .def("refusal", &SealedImage::refusal, "The policy that forbids code in this place, or an empty string.");

  nb::class_<Module>(m, "Module", nb::is_weak_referenceable())
      .def_prop_ro("abi", &Module::abi)
      .def_prop_ro("family", &Module::family)
      .def_prop_ro("level", &Module::level)
      .def("function", &Module::function, "name"_a)
      .def("function_names", &Module::function_names);

  nb::class_<Function>(m, "Function", nb::is_weak_referenceable())
      .def_prop_ro("name", &Function::name)
      .def_prop_ro("param_bytes", &Function::param_bytes, "Size of the parameter block, as the driver states it.")
      .def_prop_ro("pointer_offsets", &offsets, nb::sig("def pointer_offsets(self) -> tuple[int, ...]"))
      .def_prop_ro("module", &Function::module);
}

}  // namespace hg
