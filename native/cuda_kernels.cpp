#include "cuda_kernels.h"

#include <unistd.h>

#include <cstring>

#include "sealed_image.h"

namespace hg {
namespace {

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

CudaModule::~CudaModule() {
  if (CudaCurrentIfAlive current(*context_); current) context_->api().cuModuleUnload(module_);
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
  const std::string doing = "looking up function " + name + " of image " + image_->name();
  CudaCurrent current(*context_, doing.c_str());
  CUfunction handle = nullptr;
  context_->check(context_->api().cuModuleGetFunction(&handle, module_, name.c_str()), "cuModuleGetFunction",
                  doing.c_str());
  // There is no call for the number of parameters: the first index past the last one is an invalid value.
  std::vector<CudaParam> params;
  for (CudaParam param{};; params.push_back(param)) {
    const CUresult result =
        context_->api().cuFuncGetParamInfo(handle, params.size(), &param.offset, &param.size);
    if (result == CUDA_ERROR_INVALID_VALUE) break;
    context_->check(result, "cuFuncGetParamInfo", doing.c_str());
  }
  return std::make_shared<CudaFunction>(std::static_pointer_cast<CudaModule>(shared_from_this()), handle, name,
                                        std::move(params));
}

CudaFunction::CudaFunction(std::shared_ptr<CudaModule> module, CUfunction handle, std::string name,
                           std::vector<CudaParam> params)
    : module_(std::move(module)), handle_(handle), name_(std::move(name)), params_(std::move(params)) {
  for (const CudaParam &param : params_)
    param_bytes_ = std::max(param_bytes_, static_cast<uint32_t>(param.offset + param.size));
}

std::vector<void *> CudaFunction::arguments(std::span<uint8_t> bytes) const {
  if (bytes.size() != param_bytes_)
    throw Error("UsageError", "using function " + name_, std::to_string(bytes.size()) + " parameter bytes",
                std::to_string(param_bytes_), "pack the parameters as the driver lays them out");
  std::vector<void *> pointers;
  for (const CudaParam &param : params_) pointers.push_back(bytes.data() + param.offset);
  return pointers;
}

std::vector<uint8_t> CudaFunction::gather(void *const *arguments) const {
  std::vector<uint8_t> bytes(param_bytes_);
  for (size_t i = 0; i < params_.size(); ++i)
    std::memcpy(bytes.data() + params_[i].offset, arguments[i], params_[i].size);
  return bytes;
}

std::shared_ptr<CudaFunction> cuda_function(const std::shared_ptr<Function> &function) {
  auto ours = std::dynamic_pointer_cast<CudaFunction>(function);
  if (!ours)
    throw Error("UsageError", "adding a kernel", function ? "a function of another device" : "no function",
                "a function of this device", "load the module on this device");
  return ours;
}

}  // namespace hg
