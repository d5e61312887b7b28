#include "elf_image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace hg {
namespace {

constexpr uint16_t kMaxSegments = 64;

template <class T>
bool read_at(std::span<const uint8_t> bytes, uint64_t at, T &out) {
  if (at > bytes.size() || sizeof out > bytes.size() - at) return false;
  memcpy(&out, bytes.data() + at, sizeof out);
  return true;
}

std::string check_header(const Elf64_Ehdr &header, std::span<const uint16_t> machines) {
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "a file that is no ELF object";
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      std::find(machines.begin(), machines.end(), header.e_machine) == machines.end())
    return "an object for another processor";
  if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0 ||
      header.e_phnum > kMaxSegments)
    return "no shared object";
  return {};
}

std::string check_dynamic(std::span<const uint8_t> bytes, const Elf64_Phdr &part) {
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= part.p_filesz; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    if (!read_at(bytes, part.p_offset + at, entry)) break;
    switch (entry.d_tag) {
      case DT_NULL: return {};
      case DT_NEEDED: return "a module that needs other libraries";
      case DT_INIT: case DT_FINI: case DT_INIT_ARRAY: case DT_FINI_ARRAY: case DT_PREINIT_ARRAY:
        return "a module with constructors or destructors";
      case DT_FLAGS_1:
        if (entry.d_un.d_val & DF_1_NODELETE) return "a module that cannot be unloaded";
        break;
      case DT_FLAGS:
        if (entry.d_un.d_val & DF_TEXTREL) return "a module whose code needs relocations";
        break;
      case DT_TEXTREL: return "a module whose code needs relocations";
      default: break;
    }
  }
  return "a dynamic section without an end";
}

// `end` is where the segments before this one end in memory: the loader wants them ascending.
std::string check_segment(std::span<const uint8_t> bytes, const Elf64_Phdr &part, uint64_t &end) {
  if (part.p_type == PT_TLS) return "a module with thread-local storage";
  if (part.p_type == PT_INTERP) return "a program";
  if (part.p_flags & PF_X && part.p_type == PT_GNU_STACK) return "a module that wants an executable stack";
  if (part.p_flags & PF_X && part.p_flags & PF_W) return "memory that is writable and executable";
  if (part.p_type != PT_LOAD && part.p_type != PT_DYNAMIC) return {};
  if (part.p_offset > bytes.size() || part.p_filesz > bytes.size() - part.p_offset || part.p_filesz > part.p_memsz)
    return "a segment beyond the end of the file";
  if (part.p_type == PT_DYNAMIC) return check_dynamic(bytes, part);
  if (part.p_vaddr < end || part.p_memsz > (1ull << 32) || part.p_vaddr > (1ull << 32)) return "segments out of order";
  end = part.p_vaddr + part.p_memsz;
  return {};
}

}  // namespace

std::string unfit_module(std::span<const uint8_t> bytes, std::span<const uint16_t> machines) {
  Elf64_Ehdr header;
  if (!read_at(bytes, 0, header)) return "a file too short for an ELF header";
  std::string unfit = check_header(header, machines);
  uint64_t end = 0;
  bool dynamic = false, stack = false;
  for (unsigned i = 0; i < header.e_phnum && unfit.empty(); ++i) {
    Elf64_Phdr part;
    if (header.e_phoff > bytes.size() || !read_at(bytes, header.e_phoff + i * sizeof part, part))
      return "program headers beyond the end of the file";
    unfit = check_segment(bytes, part, end);
    dynamic |= part.p_type == PT_DYNAMIC;
    stack |= part.p_type == PT_GNU_STACK;
  }
  if (unfit.empty() && (end == 0 || !dynamic)) return "an object with nothing to load";
  if (unfit.empty() && !stack) return "a module that says nothing of its stack, which the loader makes executable then";
  return unfit;
}

}  // namespace hg
