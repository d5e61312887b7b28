#include "cuda_cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace hg {
namespace {

constexpr uint16_t kMachineCuda = 190;  // EM_CUDA
constexpr std::string_view kCode = ".text.";

template <class T>
bool read_at(std::span<const uint8_t> bytes, uint64_t at, T &out) {
  if (at > bytes.size() || sizeof out > bytes.size() - at) return false;
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> functions_of_cubin(std::span<const uint8_t> bytes) {
  Elf64_Ehdr header;
  if (!read_at(bytes, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachineCuda)
    return {};
  // With very many sections (65,280 and up) the header says 0, and section 0 says how many and which has the names.
  Elf64_Shdr first, names;
  if (!read_at(bytes, header.e_shoff, first)) return {};
  const uint64_t count = header.e_shnum ? header.e_shnum : first.sh_size;
  const uint64_t index = header.e_shstrndx == SHN_XINDEX ? first.sh_link : header.e_shstrndx;
  if (count > bytes.size() / sizeof(Elf64_Shdr) || index >= count ||
      !read_at(bytes, header.e_shoff + index * sizeof names, names) || names.sh_offset > bytes.size() ||
      names.sh_size > bytes.size() - names.sh_offset)
    return {};
  const std::string_view table(reinterpret_cast<const char *>(bytes.data()) + names.sh_offset, names.sh_size);
  std::vector<std::string> out;
  for (uint64_t i = 1; i < count; ++i) {
    Elf64_Shdr section;
    if (!read_at(bytes, header.e_shoff + i * sizeof section, section)) return {};
    if (section.sh_name >= table.size()) continue;
    const std::string_view rest = table.substr(section.sh_name);
    const std::string_view name = rest.substr(0, rest.find('\0'));
    if (name.starts_with(kCode)) out.emplace_back(name.substr(kCode.size()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace hg
