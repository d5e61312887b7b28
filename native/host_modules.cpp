#include "host_modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <unordered_set>

#include "elf_image.h"
#include "host_driver.h"

namespace hg {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine[] = {EM_X86_64};
#elif defined(__aarch64__)
constexpr uint16_t kMachine[] = {EM_AARCH64};
#endif
constexpr uint32_t kMaxFunctions = 65'536, kMaxParamBytes = 4'096;

[[noreturn]] void refuse(const SealedImage &image, const std::string &found, const std::string &required,
                         const std::string &hint) {
  throw Error("ModuleError", "loading kernel module " + image.name(), found, required, hint);
}

class MappedImage {  // the image's bytes, for reading
 public:
  explicit MappedImage(const SealedImage &image) : size_(image.size()) {
    void *at = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, image.descriptor(), 0);
    if (at == MAP_FAILED) refuse(image, std::string("mmap: ") + strerror(errno), "its bytes", "free some memory");
    at_ = static_cast<const uint8_t *>(at);
  }
  ~MappedImage() { munmap(const_cast<uint8_t *>(at_), size_); }
  MappedImage(const MappedImage &) = delete;
  std::span<const uint8_t> bytes() const { return {at_, size_}; }

 private:
  const uint8_t *at_ = nullptr;
  const size_t size_;
};

// The loader returns an object that it has when the name or the file's number is one that it knows, whatever is in the
// file now. Both are ours for as long as the descriptor is open; a handle that we hold already tells if they are not.
// (Asking the loader first, with RTLD_NOLOAD, would walk its list of objects once more: that list is what makes
// thousands of modules slow.) Never destroyed: modules may outlive static objects.
class Handles {
 public:
  static Handles &all() {
    static Handles *it = new Handles;
    return *it;
  }
  bool add(void *handle) {
    std::lock_guard lock(mutex_);
    return handles_.insert(handle).second;
  }
  void remove(void *handle) {
    std::lock_guard lock(mutex_);
    handles_.erase(handle);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<void *> handles_;
};

std::shared_ptr<void> open_image(const SealedImage &image) {
  if (std::string policy = image.refusal(); !policy.empty())
    refuse(image, policy, "a place that may hold code", "seal the image in another place: memory, runtime or cache");
  std::string unfit = unfit_module(MappedImage(image).bytes(), kMachine);
  if (!unfit.empty())
    refuse(image, unfit, "a freestanding shared object of this machine", "the image is damaged: capture again");
  void *opened = dlopen(image.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    const char *words = dlerror();
    refuse(image, words ? words : "no reason given", "an object that the dynamic loader takes",
           "the image is damaged: capture again");
  }
  if (!Handles::all().add(opened)) {
    dlclose(opened);
    refuse(image, "another module under the name " + image.path(), "a name that the dynamic loader does not know",
           "a descriptor of a loaded module was closed by somebody else: find out by whom");
  }
  return {opened, [](void *it) {
            Handles::all().remove(it);
            dlclose(it);
          }};
}

void check_function(const SealedImage &image, const hg_function &entry, std::set<std::string> &names) {
  if (!entry.name || !entry.run) refuse(image, "a function without name or code", "both", "rebuild the module");
  const std::string name = entry.name;
  if (!names.insert(name).second) refuse(image, "two functions named " + name, "one", "rebuild the module");
  if (entry.param_bytes > kMaxParamBytes)
    refuse(image, name + " takes " + std::to_string(entry.param_bytes) + " bytes of parameters",
           "at most " + std::to_string(kMaxParamBytes), "rebuild the module");
  if (entry.pointer_count > entry.param_bytes / 8 || (entry.pointer_count && !entry.pointer_offsets))
    refuse(image, name + " declares " + std::to_string(entry.pointer_count) + " pointers",
           "as many as its parameters can hold", "rebuild the module");
  uint64_t least = 0;
  for (uint32_t i = 0; i < entry.pointer_count; ++i) {
    uint64_t at = entry.pointer_offsets[i];
    if (at < least || at % 8 != 0 || at + 8 > entry.param_bytes)
      refuse(image, name + " declares a pointer at byte " + std::to_string(at), "ascending multiples of 8 inside its " +
             std::to_string(entry.param_bytes) + " bytes of parameters", "rebuild the module");
    least = at + 8;
  }
}

void check_level(const SealedImage &image, const std::string &level) {
  std::string runs;
  for (const std::string &known : host_levels()) {
    if (known == level) return;
    runs += (runs.empty() ? "" : ", ") + known;
  }
  refuse(image, "code for " + level, "one of " + runs + ", which this processor runs", "capture for this machine");
}

const hg_module *find_table(const SealedImage &image, void *handle) {
  auto *table = static_cast<const hg_module *>(dlsym(handle, "heliograph_module"));
  if (!table) refuse(image, "no symbol heliograph_module", "a Heliograph kernel module", "this is another library");
  if (table->abi != HG_KERNEL_ABI)
    refuse(image, "kernel ABI " + std::to_string(table->abi), "kernel ABI " + std::to_string(HG_KERNEL_ABI),
           "capture again with this version, or load with the version that captured it");
  if (!table->family || !table->level || !table->functions || table->function_count > kMaxFunctions)
    refuse(image, "an incomplete module table", "family, level and functions", "rebuild the module");
  check_level(image, table->level);
  std::set<std::string> names;
  for (uint32_t i = 0; i < table->function_count; ++i) check_function(image, table->functions[i], names);
  return table;
}

bool same_bytes(const SealedImage &a, const SealedImage &b) {
  if (a.size() != b.size()) return false;
  MappedImage left(a), right(b);
  return memcmp(left.bytes().data(), right.bytes().data(), a.size()) == 0;
}

// Modules of this process by the name of their image, its digest. Names are not trusted: bytes are compared. Never
// destroyed: modules may outlive static objects.
struct Loaded {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<HostModule>> modules;
};
Loaded &loaded() {
  static Loaded *it = new Loaded;
  return *it;
}

}  // namespace

std::shared_ptr<Module> load_host_module(std::shared_ptr<const SealedImage> image,
                                         std::shared_ptr<HostCounters> counters) {
  std::lock_guard lock(loaded().mutex);
  std::weak_ptr<HostModule> &known = loaded().modules[image->name()];
  if (auto live = known.lock(); live && same_bytes(live->image(), *image)) return live;
  auto made = std::make_shared<HostModule>(std::move(image), std::move(counters));
  known = made;
  return made;
}

std::vector<std::string> host_levels() {
  std::vector<std::string> levels;
#if defined(__x86_64__)
  auto has_v3 = [] {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
  };
  auto has_v4 = [] {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  };
  if (has_v3() && has_v4() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    levels.emplace_back("x86-64-v4+vnni+bf16");
  if (has_v3()) levels.emplace_back("x86-64-v3");
#endif
  levels.emplace_back("generic");
  return levels;
}

HostModule::HostModule(std::shared_ptr<const SealedImage> image, std::shared_ptr<HostCounters> counters)
    : image_(std::move(image)), counters_(std::move(counters)), handle_(open_image(*image_)) {
  table_ = find_table(*image_, handle_.get());
  counters_->modules_loaded.fetch_add(1);
  counters_->modules_live.fetch_add(1);
}

HostModule::~HostModule() {
  handle_.reset();  // before the descriptor: until then its number names this module
  counters_->modules_live.fetch_sub(1);
}

std::vector<std::string> HostModule::function_names() const {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < table_->function_count; ++i) names.emplace_back(table_->functions[i].name);
  return names;
}

std::shared_ptr<Function> HostModule::function(const std::string &name) {
  std::lock_guard lock(mutex_);
  if (auto known = known_[name].lock()) return known;
  for (uint32_t i = 0; i < table_->function_count; ++i) {
    if (name != table_->functions[i].name) continue;
    auto made = std::make_shared<HostFunction>(shared_from_this(), table_->functions[i]);
    known_[name] = made;
    return made;
  }
  known_.erase(name);
  refuse(*image_, "no function " + name, "a function of family " + family(), "list them with function_names()");
}

}  // namespace hg
