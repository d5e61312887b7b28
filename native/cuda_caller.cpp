#include "cuda_caller.h"

#include <execinfo.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace hg {
namespace {

constexpr int kFrames = 96;

std::string file_content(const char *path) {
  std::string out;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return out;
  std::array<char, 16384> block;
  for (ssize_t got; (got = ::read(file, block.data(), block.size())) > 0;) out.append(block.data(), size_t(got));
  close(file);
  return out;
}

bool passed_over(std::string_view name) {
  // The driver's, the runtime's, the system's, and the interpreter with its way to call C.
  constexpr std::string_view kStarts[] = {"libcuda.so", "libcudart", "libcupti",  "libnvidia-", "libc.so", "libc-",
                                          "libpthread", "ld-linux",  "libstdc++", "libgcc_s",   "libdl",   "python",
                                          "libpython",  "libffi",    "_ctypes."};
  return std::any_of(std::begin(kStarts), std::end(kStarts), [name](auto start) { return name.starts_with(start); });
}

bool of_triton(std::string_view path, std::string_view name) {
  return name.starts_with("cuda_utils") || name.starts_with("__triton_launcher") ||
         path.find("/triton/") != path.npos || path.find("/.triton/") != path.npos;
}

}  // namespace

std::string base_name(const std::string &path) { return path.substr(path.rfind('/') + 1); }

void MappedFiles::read() {
  parts_.clear();
  files_.clear();
  const std::string maps = file_content("/proc/self/maps");
  for (size_t at = 0; at < maps.size();) {
    const size_t end = std::min(maps.find('\n', at), maps.size());
    const std::string line = maps.substr(at, end - at);
    at = end + 1;
    const size_t path = line.find('/');
    char *rest = nullptr;
    const uintptr_t from = std::strtoull(line.c_str(), &rest, 16);
    if (path == line.npos || *rest != '-') continue;
    const uintptr_t to = std::strtoull(rest + 1, nullptr, 16);
    if (files_.empty() || files_.back() != std::string_view(line).substr(path)) files_.push_back(line.substr(path));
    parts_.push_back({from, to, files_.size() - 1});
  }
}

std::string MappedFiles::find(const std::string &start) const {
  for (const std::string &file : files_)
    if (base_name(file).starts_with(start)) return file;
  return {};
}

const MappedFiles::Part *MappedFiles::part(uintptr_t address) const {
  auto after = std::upper_bound(parts_.begin(), parts_.end(), address,
                                [](uintptr_t at, const Part &part) { return at < part.begin; });
  if (after == parts_.begin()) return nullptr;
  const Part &before = *--after;
  return address < before.end ? &before : nullptr;
}

const std::string &MappedFiles::at(uintptr_t address) {
  static const std::string none;
  const Part *found = part(address);
  if (!found) {
    read();
    found = part(address);
  }
  return found ? files_[found->file] : none;
}

std::string calling_library(MappedFiles &files, std::initializer_list<uintptr_t> skipped) {
  void *frames[kFrames];
  const int count = backtrace(frames, kFrames);
  // By value: asking for one address may read the list of files anew.
  std::vector<std::string> skip = {files.at(reinterpret_cast<uintptr_t>(&calling_library))};
  for (uintptr_t address : skipped) skip.push_back(files.at(address));
  for (int i = 0; i < count; ++i) {
    const std::string path = files.at(reinterpret_cast<uintptr_t>(frames[i]) - 1);  // of the call, not behind it
    if (path.empty() || std::find(skip.begin(), skip.end(), path) != skip.end()) continue;
    const std::string name = base_name(path);
    if (of_triton(path, name)) return "triton";
    if (!passed_over(name)) return name;
  }
  return {};
}

void prepare_stack_walks() {
  void *frames[1];
  backtrace(frames, 1);
}

}  // namespace hg
