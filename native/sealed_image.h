// A kernel image that nobody can change any more, held by a descriptor: what is hashed is what is loaded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace hg {

// Where an image lives. `memory` is a sealed memfd. The other two are for machines whose policy refuses that: an
// unnamed file in the runtime directory, a file in the cache directory that is unlinked once it is open. Neither of
// the two can be sealed; nothing but this process has them open for writing, and only until the constructor ends.
enum class ImagePlace : uint8_t { memory, runtime, cache };

// Glibc knows a loaded object by its name, and the name is /proc/self/fd/N. If N were closed and used again, dlopen
// would return the earlier module (seen: 3,999 of 4,000). So the descriptor stays open as long as this object, and
// whoever loads it holds this object.
class SealedImage : public std::enable_shared_from_this<SealedImage> {
 public:
  // Throws ModuleError naming the policy when the place is refused.
  SealedImage(const std::string &name, std::span<const uint8_t> data, ImagePlace place = ImagePlace::memory,
              const std::string &folder = {});
  ~SealedImage();
  SealedImage(const SealedImage &) = delete;
  SealedImage &operator=(const SealedImage &) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t size() const { return size_; }
  const std::string &name() const { return name_; }
  ImagePlace place() const { return place_; }
  // A path that dlopen can take: /proc/self/fd/N.
  std::string path() const;
  // Whether this place may hold code: empty, or the policy that forbids it (a noexec mount, SELinux, no /proc).
  std::string refusal() const;

 private:
  std::string name_;
  uint64_t size_ = 0;
  ImagePlace place_;
  int descriptor_ = -1;
};

}  // namespace hg
