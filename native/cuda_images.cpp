#include "cuda_images.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "cuda_caller.h"
#include "cuda_calls.h"
#include "cuda_cubin.h"
#include "text.h"

namespace hg {
namespace {

// Entry points beyond the table, which serving does without.
#define HG_CUDA_IMAGE_ENTRIES(X) \
  X(cuKernelGetLibrary, 12050)   \
  X(cuLibraryGetKernel, 12000)   \
  X(cuLibraryGetModule, 12000)   \
  X(cuFuncGetModule, 11000)

struct ImageCalls {
#define HG_MEMBER(name, version) decltype(&::name) name = nullptr;
  HG_CUDA_IMAGE_ENTRIES(HG_MEMBER)
#undef HG_MEMBER
  uintptr_t driver;  // an address inside the driver's file
  explicit ImageCalls(const CudaApi &api) : driver(reinterpret_cast<uintptr_t>(api.cuInit)) {
#define HG_FIND(name, version) name = reinterpret_cast<decltype(name)>(api.find(#name, version));
    HG_CUDA_IMAGE_ENTRIES(HG_FIND)
#undef HG_FIND
  }
};

// The driver calls that a thread is inside of, and the images that each has loaded so far. Used by that thread only.
struct ThreadCalls {
  static constexpr size_t kDepth = 64;
  struct Call {
    uint32_t correlation;
    size_t first;  // of its images
  };
  std::vector<Call> calls;
  std::vector<size_t> images;
  bool asking = false;  // calls of ours, made in a callback
};

}  // namespace

class CudaImages::Collector {
 public:
  explicit Collector(uintptr_t cupti) : cupti_(cupti) {}
  void use(const CudaApi &api) {
    owned_calls_ = std::make_unique<const ImageCalls>(api);
    calls_ = owned_calls_.get();
  }

  static void CUPTIAPI callback(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) noexcept;

  size_t count() const {
    std::lock_guard lock(mutex_);
    return images_.size();
  }
  template <class Use>
  auto with(size_t number, Use use) const {
    std::lock_guard lock(mutex_);
    if (number >= images_.size())
      throw Error("UsageError", "reading a kernel image", text("number ", number), text("less than ", images_.size()),
                  "take a number from number() or below count()");
    return use(images_[number]);
  }
  size_t number(const CudaContext &context, CUkernel kernel, CUfunction function);

 private:
  struct Image {
    std::vector<uint8_t> bytes;
    std::string library;  // whose code loaded it
    std::string call;     // the driver call it was loaded in; empty outside of all
    uint32_t module = 0;  // CUPTI's number of it
    bool loaded = true, named = false;  // named: the call said what it was about
    std::optional<std::vector<std::string>> functions;
  };
  using Numbers = std::vector<size_t>;

  ThreadCalls &thread();
  void loaded(ThreadCalls &thread, const CUpti_ModuleResourceData &data);
  void unloaded(const CUpti_ModuleResourceData &data);
  static void enter(ThreadCalls &thread, const CUpti_CallbackData &data);
  void leave(ThreadCalls &thread, CUpti_CallbackId call, const CUpti_CallbackData &data);
  void complete(CallHandles &handles) const;
  void name(const CallHandles &handles, const char *call, std::span<const size_t> images);

  // Looks for the one image that a handle leads to; remembers when there were several.
  class Search {
   public:
    Search(const Collector &all, std::string function) : all_(all), function_(std::move(function)) {}
    template <class Map, class Handle>
    bool through(const Map &map, Handle handle);
    size_t found = 0;
    size_t several = 0;

   private:
    const Collector &all_;
    std::string function_;
  };
  std::vector<CUlibrary> libraries() const;  // of which an image is loaded
  [[noreturn]] void refuse(const std::string &doing, size_t several) const;

  const uintptr_t cupti_;
  std::unique_ptr<const ImageCalls> owned_calls_;
  std::atomic<const ImageCalls *> calls_{nullptr};  // null until the driver is open: nothing can be asked before
  mutable std::mutex mutex_;                 // guards what follows; never held across a call of the driver
  std::vector<Image> images_;
  std::map<uint32_t, size_t> by_module_;
  std::map<CUkernel, Numbers> kernels_;
  std::map<CUlibrary, Numbers> libraries_;
  std::map<CUmodule, Numbers> modules_;
  std::map<std::thread::id, ThreadCalls> threads_;
  uint64_t lost_ = 0;  // callbacks that ran out of memory
  std::mutex files_mutex_;
  MappedFiles files_;

 public:
  // The one subscriber of the process. A callback holds it while it runs: closing cannot take it away from under one.
  struct Current {
    std::mutex mutex;
    std::shared_ptr<Collector> collector;
  };
  static Current &current() {
    static auto *only = new Current;  // never destroyed: calls may come while the process exits
    return *only;
  }
};

// ---- callbacks ----

void CudaImages::Collector::callback(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                     const void *data) noexcept {
  std::shared_ptr<Collector> self;
  {
    std::lock_guard lock(current().mutex);
    self = current().collector;
  }
  if (!self) return;
  try {
    ThreadCalls &thread = self->thread();
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
      if (thread.asking) return;
      const auto &call = *static_cast<const CUpti_CallbackData *>(data);
      if (call.callbackSite == CUPTI_API_ENTER)
        enter(thread, call);
      else
        self->leave(thread, id, call);
    } else if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
      const auto *resource = static_cast<const CUpti_ResourceData *>(data);
      const auto *module = static_cast<const CUpti_ModuleResourceData *>(resource->resourceDescriptor);
      if (id == CUPTI_CBID_RESOURCE_MODULE_LOADED)
        self->loaded(thread, *module);
      else if (id == CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING)
        self->unloaded(*module);
    }
  } catch (const std::exception &) {  // out of memory
    std::lock_guard lock(self->mutex_);
    ++self->lost_;
  }
}

// No thread-local variable: the room for those of libraries that are loaded late is small.
ThreadCalls &CudaImages::Collector::thread() {
  std::lock_guard lock(mutex_);
  return threads_[std::this_thread::get_id()];
}

void CudaImages::Collector::loaded(ThreadCalls &thread, const CUpti_ModuleResourceData &data) {
  Image image;
  const auto *bytes = reinterpret_cast<const uint8_t *>(data.pCubin);
  if (bytes) image.bytes.assign(bytes, bytes + data.cubinSize);
  image.functions = functions_of_cubin(image.bytes);
  image.module = data.moduleId;
  {
    std::lock_guard lock(files_mutex_);
    const ImageCalls *calls = calls_;
    image.library = calling_library(files_, {cupti_, calls ? calls->driver : cupti_});
  }
  size_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = images_.size();
    images_.push_back(std::move(image));
    by_module_[data.moduleId] = number;
  }
  if (!thread.calls.empty()) thread.images.push_back(number);
}

void CudaImages::Collector::unloaded(const CUpti_ModuleResourceData &data) {
  std::lock_guard lock(mutex_);
  // Its handles may be given to others from now on.
  if (const auto at = by_module_.find(data.moduleId); at != by_module_.end()) images_[at->second].loaded = false;
}

void CudaImages::Collector::enter(ThreadCalls &thread, const CUpti_CallbackData &data) {
  if (thread.calls.size() == ThreadCalls::kDepth) thread = {};  // returns that never came
  thread.calls.push_back({data.correlationId, thread.images.size()});
}

void CudaImages::Collector::leave(ThreadCalls &thread, CUpti_CallbackId call, const CUpti_CallbackData &data) {
  auto &calls = thread.calls;
  while (!calls.empty() && calls.back().correlation != data.correlationId &&
         std::any_of(calls.begin(), calls.end(), [&](auto &it) { return it.correlation == data.correlationId; }))
    calls.pop_back();  // one inside this one, whose return never came
  if (calls.empty() || calls.back().correlation != data.correlationId) return;  // it began before we subscribed
  const size_t first = calls.back().first;
  if (thread.images.size() > first && calls_.load()) {
    CallHandles handles = handles_of(call, data.functionParams, *static_cast<CUresult *>(data.functionReturnValue));
    thread.asking = true;
    complete(handles);  // what this loads counts as loaded by the call
    thread.asking = false;
    name(handles, data.functionName, std::span(thread.images).subspan(first));
  }
  calls.pop_back();
  thread.images.resize(first);
}

// A launch's function may be a kernel; a kernel has a library, a function a module.
void CudaImages::Collector::complete(CallHandles &handles) const {
  const ImageCalls &calls = *calls_.load();
  CUkernel kernel = handles.kernel;
  if (CUmodule module = nullptr; handles.function) {
    if (calls.cuFuncGetModule(&module, handles.function) == CUDA_SUCCESS)
      handles.module = module;
    else if (!kernel)
      kernel = reinterpret_cast<CUkernel>(handles.function);
  }
  if (CUlibrary library = nullptr; kernel && calls.cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS) {
    handles.kernel = kernel;
    handles.library = library;
  }
}

void CudaImages::Collector::name(const CallHandles &handles, const char *call, std::span<const size_t> images) {
  auto add = [images](auto &map, auto handle) {
    if (!handle) return false;
    Numbers &numbers = map[handle];
    numbers.insert(numbers.end(), images.begin(), images.end());
    return true;
  };
  std::lock_guard lock(mutex_);
  bool named = add(kernels_, handles.kernel);
  named |= add(libraries_, handles.library);
  named |= add(modules_, handles.module);
  for (size_t number : images) {
    images_[number].call = call ? call : "";
    images_[number].named = named;
  }
}

// ---- looking up ----

// Of the images that a handle leads to: those that are still loaded and have code for the function. More than one is
// none, unless they are the same bytes (one library loaded for two devices, say).
template <class Map, class Handle>
bool CudaImages::Collector::Search::through(const Map &map, Handle handle) {
  std::lock_guard lock(all_.mutex_);
  const auto at = map.find(handle);
  if (!handle || at == map.end()) return false;
  Numbers fitting;
  for (size_t number : at->second) {
    const Image &image = all_.images_[number];
    if (!image.loaded || image.bytes.empty()) continue;
    if (image.functions && !std::binary_search(image.functions->begin(), image.functions->end(), function_)) continue;
    if (std::none_of(fitting.begin(), fitting.end(),
                     [&](size_t other) { return all_.images_[other].bytes == image.bytes; }))
      fitting.push_back(number);
  }
  several = std::max(several, fitting.size() > 1 ? fitting.size() : 0);
  if (fitting.size() != 1) return false;
  found = fitting.front();
  return true;
}

std::vector<CUlibrary> CudaImages::Collector::libraries() const {
  std::lock_guard lock(mutex_);
  std::vector<CUlibrary> out;
  for (const auto &[library, images] : libraries_)
    if (std::any_of(images.begin(), images.end(), [&](size_t number) { return images_[number].loaded; }))
      out.push_back(library);
  return out;
}

size_t CudaImages::Collector::number(const CudaContext &context, CUkernel kernel, CUfunction handle) {
  CudaCurrent current(context, "finding the image of a kernel");
  const ImageCalls &calls = *calls_.load();
  const char *name = nullptr;
  const bool known = kernel ? context.api().cuKernelGetName(&name, kernel) == CUDA_SUCCESS
                            : context.api().cuFuncGetName(&name, handle) == CUDA_SUCCESS;
  const std::string doing = text("finding the image of kernel ", known && name ? name : "without a name");
  if (!known || !name)
    throw Error("CaptureError", doing, "handles that the driver does not know",
                "the handles of a kernel whose module is loaded", "look kernels up before their modules are unloaded");
  Search search(*this, name);
  if (kernel) {
    // A kernel that nothing has touched yet is loaded here, and so seen.
    CUlibrary library = nullptr;
    if (!handle && context.api().cuKernelGetFunction(&handle, kernel) != CUDA_SUCCESS) handle = nullptr;
    if (search.through(kernels_, kernel)) return search.found;
    if (calls.cuKernelGetLibrary(&library, kernel) == CUDA_SUCCESS && search.through(libraries_, library))
      return search.found;
  }
  CUmodule module = nullptr;
  if (handle && calls.cuFuncGetModule(&module, handle) == CUDA_SUCCESS) {
    if (search.through(modules_, module)) return search.found;
    // Of a library whose image came with one of its kernels: the library's module, or the function of its kernel. The
    // name only says which kernel to ask; what decides is that it has this very function.
    for (CUlibrary library : libraries()) {
      CUmodule of_library = nullptr;
      CUkernel namesake = nullptr;
      CUfunction of_namesake = nullptr;
      if (calls.cuLibraryGetModule(&of_library, library) == CUDA_SUCCESS && of_library == module &&
          search.through(libraries_, library))
        return search.found;
      if (calls.cuLibraryGetKernel(&namesake, library, name) == CUDA_SUCCESS &&
          context.api().cuKernelGetFunction(&of_namesake, namesake) == CUDA_SUCCESS && of_namesake == handle &&
          (search.through(kernels_, namesake) || search.through(libraries_, library)))
        return search.found;
    }
  }
  refuse(doing, search.several);
}

void CudaImages::Collector::refuse(const std::string &doing, size_t several) const {
  std::map<std::string, size_t> unnamed;
  std::lock_guard lock(mutex_);
  for (const Image &image : images_)
    if (!image.named) ++unnamed[image.call.empty() ? "outside a driver call" : image.call];
  std::string found = several ? text(several, " different images behind its handle")
                              : text("none of the ", images_.size(), " images behind its handle");
  std::string between = "; images that no handle leads to: ";
  for (const auto &[call, count] : unnamed) {
    append(found, text(between, count, " loaded in ", call));
    between = ", ";
  }
  if (lost_) append(found, text("; ", lost_, " were lost for want of memory"));
  throw Error("CaptureError", doing, found, "the image that its kernel, library or module was loaded from",
              "subscribe before the first module is loaded, and unsubscribe after the last lookup; names are no proof: "
              "several images may have this one");
}

// ---- the subscriber ----

CudaImages::CudaImages(const std::string &cupti) : cupti_(CuptiApi::open(cupti)) {
  prepare_stack_walks();
  auto &current = Collector::current();
  {
    std::lock_guard lock(current.mutex);
    if (current.collector)
      throw Error("CaptureError", "watching which kernel images are loaded", "a subscriber of this process still open",
                  "one at a time", "close it first");
    current.collector = collector_ = std::make_shared<Collector>(reinterpret_cast<uintptr_t>(cupti_.subscribe));
  }
  auto must = [&](CUptiResult result, const char *call) {
    if (result != CUPTI_SUCCESS) throw cupti_.error(result, call);
  };
  try {
    must(cupti_.subscribe(&subscriber_, &Collector::callback, nullptr), "cuptiSubscribe");
    for (const auto module : {CUPTI_CBID_RESOURCE_MODULE_LOADED, CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING})
      must(cupti_.enable_callback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, module), "cuptiEnableCallback");
    must(cupti_.enable_domain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API), "cuptiEnableDomain");
    api_ = CudaApi::open();  // which initialises the driver: after subscribing
    collector_->use(*api_);
  } catch (...) {
    if (subscriber_) cupti_.unsubscribe(subscriber_);
    subscriber_ = nullptr;
    std::lock_guard lock(current.mutex);
    current.collector.reset();
    throw;
  }
}

CudaImages::~CudaImages() {
  try {
    close();
  } catch (const Error &) {  // nobody to tell
  }
}

void CudaImages::close() {
  if (!subscriber_) return;
  {
    auto &current = Collector::current();
    std::lock_guard lock(current.mutex);
    current.collector.reset();
  }
  const CUptiResult result = cupti_.unsubscribe(std::exchange(subscriber_, nullptr));
  if (result != CUPTI_SUCCESS) throw cupti_.error(result, "cuptiUnsubscribe");
}

size_t CudaImages::count() const { return collector_->count(); }

std::vector<uint8_t> CudaImages::image(size_t number) const {
  return collector_->with(number, [](const auto &image) { return image.bytes; });
}

std::string CudaImages::library(size_t number) const {
  return collector_->with(number, [](const auto &image) { return image.library; });
}

size_t CudaImages::number(const CudaFunction &function) const {
  return collector_->number(*function.context(), function.kernel(), function.handle());
}

size_t CudaImages::number(const CudaContext &context, CUkernel kernel, CUfunction function) const {
  return collector_->number(context, kernel, function);
}

}  // namespace hg
