// SealedImage, Module and Function, as Python sees them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "elf_image.h"
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

nb::list params(const Function &function) {
  nb::list out;
  for (const Param &param : function.params()) out.append(nb::make_tuple(param.offset, param.size));
  return out;
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
  m.def("unfit_module", [](const Bytes &image, const std::vector<uint16_t> &machines) {
    return unfit_module(image.span(), machines);
  }, "image"_a, "machines"_a, nb::sig("def unfit_module(image: Buffer, machines: Sequence[int]) -> str"),
        "Why an image is no freestanding kernel module of one of these machines (ELF's e_machine), as load_module of\n"
        "the host device sees it; empty if it is one. Loads nothing.");

  nb::class_<Module>(m, "Module", nb::is_weak_referenceable())
      .def_prop_ro("abi", &Module::abi)
      .def_prop_ro("family", &Module::family)
      .def_prop_ro("level", &Module::level)
      // A driver that loads code when it is first asked for waits for what runs on the device.
      .def("function", [](Module &self, const std::string &name) {
        return unlocked([&] { return self.function(name); });
      }, "name"_a)
      .def("function_names", [](const Module &self) { return unlocked([&] { return self.function_names(); }); })
      .def("global_address", [](const Module &self, const std::string &name) {
        return unlocked([&] { return self.global_address(name); });
      }, "name"_a,
           "(address, bytes) of a variable of a CUDA module. ModuleError if there is none; none on the host.")
      .def("read_global", [](const Module &self, const std::string &name) {
        const auto data = unlocked([&] { return self.read_global(name); });
        return nb::bytes(reinterpret_cast<const char *>(data.data()), data.size());
      }, "name"_a, "What a variable holds now. ModuleError if there is none.")
      .def("write_global", [](Module &self, const std::string &name, const Bytes &data) {
        unlocked([&] { self.write_global(name, data.span()); });
      }, "name"_a, "data"_a, nb::sig("def write_global(self, name: str, data: Buffer) -> None"),
           "Writes a variable whole. ModuleError if there is none, or if it has another size.");

  nb::class_<Function>(m, "Function", nb::is_weak_referenceable())
      .def_prop_ro("name", &Function::name)
      .def_prop_ro("param_bytes", &Function::param_bytes, "Size of the parameter block, as the driver states it.")
      .def_prop_ro("pointer_offsets", &offsets, nb::sig("def pointer_offsets(self) -> tuple[int, ...]"))
      .def_prop_ro("params", &params, nb::sig("def params(self) -> list[tuple[int, int]]"),
                   "(offset, size) of each parameter in bytes, as the driver states them; empty on the host.")
      .def_prop_ro("local_bytes", &Function::local_bytes,
                   "Local memory of a thread, in bytes: what the stack limit of the context has to allow; 0 on the host.")
      .def_prop_ro("attributes", &Function::attributes, nb::sig("def attributes(self) -> list[tuple[int, int]]"),
                   "The attributes that can be set (8, 9, 11 to 15 of the CUDA driver), as they are now on the\n"
                   "function or on its kernel, whichever is more; empty on the host.")
      .def("raise_attributes", [](Function &self, const std::vector<std::pair<uint32_t, int64_t>> &attributes) {
        unlocked([&] { self.raise_attributes(attributes); });
      }, "attributes"_a,
           "Sets those that are more than what is set, and lowers none; to be called before nodes are added. On the\n"
           "host only an empty list is allowed.")
      .def_prop_ro("module", &Function::module, nb::sig("def module(self) -> Module | None"),
                   "None for a function that somebody else loaded (borrow_template).");
}

}  // namespace hg
