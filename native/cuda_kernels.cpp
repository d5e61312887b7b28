#include "cuda_kernels.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cuda_nodes.h"
#include "sealed_image.h"
#include "text.h"

namespace hg {
namespace {

// The attributes of functions that can be set: dynamic shared memory, carve-out, required cluster (3), consent to
// clusters that not all devices have, cluster scheduling.
constexpr uint32_t kSettable[] = {8, 9, 11, 12, 13, 14, 15};
constexpr uint64_t kPortableCluster = 8;  // blocks of a cluster that needs no consent

std::vector<uint8_t> content(const SealedImage &image) {
  std::vector<uint8_t> bytes(image.size());
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(image.descriptor(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (got <= 0)
      throw Error("ModuleError", "loading kernel image " + image.name(), "an image that cannot be read",
                  std::to_string(bytes.size()) + " bytes", "make the image again");
    done += static_cast<size_t>(got);
  }
  bytes.push_back(0);  // an image in text form (PTX) ends with a zero
  return bytes;
}

}  // namespace

CudaModule::CudaModule(std::shared_ptr<CudaContext> context, std::shared_ptr<const SealedImage> image)
    : context_(std::move(context)), image_(std::move(image)) {
  const std::string doing = "loading kernel image " + image_->name();
  CudaCurrent current(*context_, doing.c_str());
  context_->check(context_->api().cuModuleLoadData(&module_, content(*image_).data()), "cuModuleLoadData",
                  doing.c_str());
  ++context_->counters.modules_loaded;
  ++context_->counters.modules_live;
}

CudaModule::CudaModule(std::shared_ptr<CudaContext> context, CUmodule borrowed)
    : context_(std::move(context)), module_(borrowed) {}

std::string CudaModule::label() const { return image_ ? "image " + image_->name() : "a borrowed module"; }

CudaModule::~CudaModule() {
  if (!image_) return;
  if (CudaCurrentIfAlive current(*context_); current) {
    CudaRelaxed relaxed(*context_);  // a stream of this thread may be capturing
    context_->api().cuModuleUnload(module_);
  }
  --context_->counters.modules_live;
}

std::vector<std::string> CudaModule::function_names() const {
  const char *doing = "listing the functions of a module";
  CudaCurrent current(*context_, doing);
  unsigned count = 0;
  context_->check(context_->api().cuModuleGetFunctionCount(&count, module_), "cuModuleGetFunctionCount", doing);
  std::vector<CUfunction> handles(count);
  context_->check(context_->api().cuModuleEnumerateFunctions(handles.data(), count, module_),
                  "cuModuleEnumerateFunctions", doing);
  std::vector<std::string> names;
  for (CUfunction handle : handles) {
    const char *name = nullptr;
    context_->check(context_->api().cuFuncGetName(&name, handle), "cuFuncGetName", doing);
    names.emplace_back(name);
  }
  return names;
}

std::shared_ptr<Function> CudaModule::function(const std::string &name) {
  const std::string doing = "looking up function " + name + " of " + label();
  CudaCurrent current(*context_, doing.c_str());
  CUfunction handle = nullptr;
  context_->check(context_->api().cuModuleGetFunction(&handle, module_, name.c_str()), "cuModuleGetFunction",
                  doing.c_str());
  // Here and not at its first launch: that waits until the device is idle, for ever if what runs waits for the launch.
  context_->check(context_->api().cuFuncLoad(handle), "cuFuncLoad", doing.c_str());
  return context_->shared_function(handle, [&] {
    return std::make_shared<CudaFunction>(context_, std::static_pointer_cast<CudaModule>(shared_from_this()), handle,
                                          nullptr, name);
  });
}

std::pair<uint64_t, uint64_t> CudaModule::global_address(const std::string &name) const {
  const std::string doing = "looking up variable " + name + " of " + label();
  CudaCurrent current(*context_, doing.c_str());
  CUdeviceptr address = 0;
  size_t size = 0;
  const CUresult result = context_->api().cuModuleGetGlobal(&address, &size, module_, name.c_str());
  if (result == CUDA_ERROR_NOT_FOUND || result == CUDA_ERROR_INVALID_VALUE)  // the latter by driver 580.159
    throw Error("ModuleError", doing, "no such variable", "a variable of the image", "take a name from its symbols");
  context_->check(result, "cuModuleGetGlobal", doing.c_str());
  return {address, size};
}

std::vector<uint8_t> CudaModule::read_global(const std::string &name) const {
  const std::string doing = "reading variable " + name + " of " + label();
  const auto [address, size] = global_address(name);
  CudaCurrent current(*context_, doing.c_str());
  std::vector<uint8_t> bytes(size);
  context_->check(context_->api().cuMemcpyDtoH(bytes.data(), address, size), "cuMemcpyDtoH", doing.c_str());
  return bytes;
}

void CudaModule::write_global(const std::string &name, std::span<const uint8_t> data) {
  const std::string doing = "writing variable " + name + " of " + label();
  const auto [address, size] = global_address(name);
  if (data.size() != size)
    throw Error("ModuleError", doing, text(data.size(), " bytes"), text(size), "write the whole variable");
  CudaCurrent current(*context_, doing.c_str());
  context_->check(context_->api().cuMemcpyHtoD(address, data.data(), size), "cuMemcpyHtoD", doing.c_str());
  context_->settle(doing.c_str());
}

CudaFunction::CudaFunction(std::shared_ptr<CudaContext> context, std::shared_ptr<CudaModule> module, CUfunction handle,
                           CUkernel kernel, std::string name)
    : context_(std::move(context)), module_(std::move(module)), handle_(handle), kernel_(kernel),
      name_(std::move(name)) {
  const std::string doing = "reading the parameters of " + name_;
  // There is no call for the number of parameters: the first index past the last one is an invalid value.
  for (;;) {
    size_t offset = 0, size = 0;
    const CUresult result = context_->api().cuFuncGetParamInfo(handle_, params_.size(), &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) break;
    context_->check(result, "cuFuncGetParamInfo", doing.c_str());
    params_.push_back({offset, size});
    param_bytes_ = std::max(param_bytes_, static_cast<uint32_t>(offset + size));
  }
}

std::optional<int> CudaFunction::get(uint32_t id) const {
  const std::string doing = text("reading attribute ", id, " of function ", name_);
  const auto attribute = static_cast<CUfunction_attribute>(id);
  int value = 0, shared = 0;
  const CUresult result = context_->api().cuFuncGetAttribute(&value, attribute, handle_);
  if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED) return std::nullopt;
  context_->check(result, "cuFuncGetAttribute", doing.c_str());
  const CUkernel kernel = kernel_;
  if (!kernel) return value;
  context_->check(context_->api().cuKernelGetAttribute(&shared, attribute, kernel, context_->device()),
                  "cuKernelGetAttribute", doing.c_str());
  return std::max(value, shared);
}

uint64_t CudaFunction::local_bytes() const {
  CudaCurrent current(*context_, "reading the attributes of a function");
  return static_cast<uint64_t>(get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES).value_or(0));
}

std::vector<FunctionAttribute> CudaFunction::attributes() const {
  CudaCurrent current(*context_, "reading the attributes of a function");
  std::vector<FunctionAttribute> out;
  for (uint32_t id : kSettable)
    if (const auto value = get(id)) out.emplace_back(id, *value);
  return out;
}

void CudaFunction::raise(uint32_t id, int64_t value) {
  const std::string doing = text("setting attribute ", id, " of function ", name_);
  if (std::find(std::begin(kSettable), std::end(kSettable), id) == std::end(kSettable) || value != int(value))
    throw Error("UsageError", doing, text("value ", value), "attribute 8, 9 or 11 to 15 and 32 bits",
                "give what attributes() gave");
  const auto attribute = static_cast<CUfunction_attribute>(id);
  const CudaApi &api = context_->api();
  int now = 0;
  context_->check(api.cuFuncGetAttribute(&now, attribute, handle_), "cuFuncGetAttribute", doing.c_str());
  if (value > now)
    context_->check(api.cuFuncSetAttribute(handle_, attribute, int(value)), "cuFuncSetAttribute", doing.c_str());
  const CUkernel kernel = kernel_;
  if (!kernel) return;
  context_->check(api.cuKernelGetAttribute(&now, attribute, kernel, context_->device()), "cuKernelGetAttribute",
                  doing.c_str());
  if (value > now)
    context_->check(api.cuKernelSetAttribute(attribute, int(value), kernel, context_->device()),
                    "cuKernelSetAttribute", doing.c_str());
}

void CudaFunction::raise_attributes(std::span<const FunctionAttribute> attributes) {
  CudaCurrent current(*context_, "setting the attributes of a function");
  std::lock_guard lock(mutex_);
  for (const auto &[id, value] : attributes) raise(id, value);
  plain_.reset();
}

void CudaFunction::allow(const KernelNode &node) {
  std::vector<FunctionAttribute> needed;
  if (node.shared_bytes) needed.emplace_back(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, node.shared_bytes);
  for (const NodeAttribute &attribute : node.attributes)
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION ||
        attribute.id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION) {
      uint32_t cluster[3];
      std::memcpy(cluster, attribute.value.data(), sizeof cluster);
      if (uint64_t(cluster[0]) * cluster[1] * cluster[2] > kPortableCluster)
        needed.emplace_back(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    }
  std::lock_guard lock(mutex_);
  for (const auto &[id, value] : needed) raise(id, value);
}

std::vector<void *> CudaFunction::arguments(std::span<uint8_t> bytes) const {
  if (bytes.size() != param_bytes_)
    throw Error("UsageError", "using function " + name_, std::to_string(bytes.size()) + " parameter bytes",
                std::to_string(param_bytes_), "pack the parameters as the driver lays them out");
  std::vector<void *> pointers;
  for (const Param &param : params_) pointers.push_back(bytes.data() + param.offset);
  return pointers;
}

std::vector<uint8_t> CudaFunction::gather(void *const *arguments) const {
  std::vector<uint8_t> bytes(param_bytes_);
  for (size_t i = 0; i < params_.size(); ++i)
    std::memcpy(bytes.data() + params_[i].offset, arguments[i], params_[i].size);
  return bytes;
}

std::vector<uint8_t> CudaFunction::gather(std::span<const uint8_t> buffer) const {
  if (buffer.size() < param_bytes_)
    throw Error("CaptureError", "reading the parameters of " + name_, text("a buffer of ", buffer.size(), " bytes"),
                text("at least ", param_bytes_), "launch the kernel with all of its parameters");
  std::vector<uint8_t> bytes(param_bytes_);
  for (const Param &param : params_)
    std::memcpy(bytes.data() + param.offset, buffer.data() + param.offset, param.size);
  return bytes;
}

std::shared_ptr<const CudaFunction::Plain> CudaFunction::plain(const KernelNode &like, CUgraphNode node) const {
  std::lock_guard lock(mutex_);
  if (!plain_) plain_ = std::make_shared<const Plain>(plain_attributes(*this, like, node));
  return plain_;
}

std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<Function> &function) {
  auto ours = std::dynamic_pointer_cast<CudaFunction>(function);
  if (!ours)
    throw Error("UsageError", "adding a kernel", function ? "a function of another device" : "no function",
                "a function of this device", "load the module on this device");
  return ours;
}

std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<CudaContext> &context, CUfunction function,
                                            CUkernel kernel) {
  const char *doing = "reading a kernel node";
  const CudaApi &api = context->api();
  CUfunction handle = function;
  if (!handle) context->check(api.cuKernelGetFunction(&handle, kernel), "cuKernelGetFunction", doing);
  auto found = context->shared_function(handle, [&] {
    const char *name = nullptr;
    if (kernel)
      context->check(api.cuKernelGetName(&name, kernel), "cuKernelGetName", doing);
    else
      context->check(api.cuFuncGetName(&name, handle), "cuFuncGetName", doing);
    return std::make_shared<CudaFunction>(context, nullptr, handle, kernel, name);
  });
  auto ours = std::static_pointer_cast<CudaFunction>(found);
  ours->learn(kernel);
  return ours;
}

}  // namespace hg
