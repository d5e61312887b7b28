// Kernel modules of the host device: freestanding shared objects (host/kernel_abi.h), loaded from a sealed image.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"
#include "host/kernel_abi.h"
#include "sealed_image.h"

namespace hg {

struct HostCounters;

// Instruction-set levels this processor can run, best first. "generic" is always the last.
std::vector<std::string> host_levels();

// The module of an image. One with the same name and bytes that is loaded in this process is the same module.
std::shared_ptr<Module> load_host_module(std::shared_ptr<const SealedImage> image,
                                         std::shared_ptr<HostCounters> counters);

class HostModule : public Module {
 public:
  // Throws ModuleError: the policy that refuses code, the loader's words, another ABI, a malformed function table, or
  // a name under which the dynamic loader knows another module.
  HostModule(std::shared_ptr<const SealedImage> image, std::shared_ptr<HostCounters> counters);
  ~HostModule() override;

  uint32_t abi() const override { return table_->abi; }
  std::string family() const override { return table_->family; }
  std::string level() const override { return table_->level; }
  const SealedImage &image() const { return *image_; }
  std::vector<std::string> function_names() const override;
  std::shared_ptr<Function> function(const std::string &name) override;

 private:
  std::shared_ptr<const SealedImage> image_;  // keeps the descriptor, and so the name that the loader knows, ours
  std::shared_ptr<HostCounters> counters_;
  std::shared_ptr<void> handle_;              // dlclose
  const hg_module *table_ = nullptr;
  std::mutex mutex_;                          // guards known_
  std::map<std::string, std::weak_ptr<Function>> known_;
};

class HostFunction : public Function {
 public:
  HostFunction(std::shared_ptr<Module> module, const hg_function &entry)
      : module_(std::move(module)), entry_(entry), name_(entry.name) {}
  const std::string &name() const override { return name_; }
  uint32_t param_bytes() const override { return entry_.param_bytes; }
  std::span<const uint32_t> pointer_offsets() const override { return {entry_.pointer_offsets, entry_.pointer_count}; }
  std::shared_ptr<Module> module() const override { return module_; }
  hg_kernel run() const { return entry_.run; }

 private:
  std::shared_ptr<Module> module_;  // keeps the code while a function of it can be called
  const hg_function &entry_;
  std::string name_;
};

}  // namespace hg
