#include "sealed_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "error.h"

namespace hg {
namespace {

constexpr unsigned kCloexec = 1, kAllowSealing = 2, kNoexecSeal = 8;             // memfd_create(2)
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;  // fcntl(2)
constexpr const char *kDoing = "sealing a kernel image";

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor &) = delete;
  ~Descriptor() { if (number_ >= 0) close(number_); }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

[[noreturn]] void refuse(const std::string &found, const std::string &required, const std::string &hint) {
  throw Error("ModuleError", kDoing, found, required, hint);
}

[[noreturn]] void refuse_call(const std::string &call) {
  const char *hint = "use another place: memory, runtime or cache";
  if (errno == EMFILE || errno == ENFILE) hint = "each module keeps one descriptor open: raise the limit (ulimit -n)";
  refuse(call + ": " + strerror(errno), "a descriptor", hint);
}

void write_all(int descriptor, std::span<const uint8_t> data) {
  while (!data.empty()) {
    ssize_t written = write(descriptor, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse_call("write");
    data = data.subspan(size_t(written));
  }
}

// A writable mapping would make sealing fail, so the bytes are written, never mapped.
int seal_memory(const std::string &name, std::span<const uint8_t> data) {
  std::string label = name.substr(0, 200);  // the kernel takes 249 bytes
  long made = syscall(SYS_memfd_create, label.c_str(), kCloexec | kAllowSealing | kNoexecSeal);
  if (made < 0 && errno == EINVAL)  // Linux before 6.3
    made = syscall(SYS_memfd_create, label.c_str(), kCloexec | kAllowSealing);
  if (made < 0) refuse_call("memfd_create");
  Descriptor file{int(made)};
  write_all(file.get(), data);
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) refuse_call("fcntl(F_ADD_SEALS)");
  return file.release();
}

// Opens what `writer` has written once more, for reading only; the writable descriptor is closed by the caller.
int reopen(int writer) {
  std::string path = "/proc/self/fd/" + std::to_string(writer);
  int reader = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader < 0) refuse_call("open " + path);
  return reader;
}

int seal_unnamed(const std::string &folder, std::span<const uint8_t> data) {
  Descriptor file{open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0400)};
  if (file.get() < 0) refuse_call("open(O_TMPFILE) in the runtime folder");
  write_all(file.get(), data);
  return reopen(file.get());
}

int seal_cached(const std::string &folder, std::span<const uint8_t> data) {
  std::string path = folder + "/image-XXXXXX";
  Descriptor file{mkostemp(path.data(), O_CLOEXEC)};
  if (file.get() < 0) refuse_call("a temporary file in the cache folder");
  int failed = unlink(path.c_str());
  if (failed) refuse_call("unlink in the cache folder");
  write_all(file.get(), data);
  return reopen(file.get());
}

}  // namespace

SealedImage::SealedImage(const std::string &name, std::span<const uint8_t> data, ImagePlace place,
                         const std::string &folder)
    : name_(name), size_(data.size()), place_(place) {
  if (data.empty()) refuse("no bytes", "a kernel image", "the image was not read");
  if (place != ImagePlace::memory && folder.empty())
    throw Error("UsageError", kDoing, "no folder", "the folder to put the image into", "only memory needs none");
  switch (place) {
    case ImagePlace::memory: descriptor_ = seal_memory(name, data); break;
    case ImagePlace::runtime: descriptor_ = seal_unnamed(folder, data); break;
    case ImagePlace::cache: descriptor_ = seal_cached(folder, data); break;
  }
}

SealedImage::~SealedImage() { close(descriptor_); }

std::string SealedImage::path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

std::string SealedImage::refusal() const {
  if (access(path().c_str(), R_OK) != 0) return "no /proc: the image cannot be named to the dynamic loader";
  void *mapped = mmap(nullptr, size_, PROT_READ | PROT_EXEC, MAP_PRIVATE, descriptor_, 0);
  if (mapped == MAP_FAILED)
    return std::string("code may not be mapped from here (") + strerror(errno) +
           "): the file system is mounted noexec, or a security module such as SELinux forbids it";
  munmap(mapped, size_);
  return {};
}

}  // namespace hg
