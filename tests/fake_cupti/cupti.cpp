// The fake CUPTI: one subscriber, the two domains that we use, and callbacks from the fake driver.
//
// It listens to the fake driver that HELIOGRAPH_LIBCUDA names, as CUPTI hooks into libcuda: driver calls tell it when
// they begin and end, in the thread that makes them, and an image that becomes a module is told inside such a call.
// Calls that a callback makes are told as well.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#define CUPTI_ENTRY extern "C" __attribute__((visibility("default"))) CUptiResult CUPTIAPI
#define CONTROL extern "C" __attribute__((visibility("default")))

struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback;
  void *data;
  std::set<CUpti_CallbackDomain> domains;
  std::set<std::pair<CUpti_CallbackDomain, CUpti_CallbackId>> callbacks;
};

namespace {

// As in tests/fake_cuda/state.h.
struct Observer {
  void (*api)(bool enter, uint32_t id, const char *name, const void *params, CUresult *result, uint32_t correlation);
  void (*module)(bool loaded, uint32_t id, const char *image, size_t size);
};

std::mutex mutex;
CUpti_Subscriber_st *subscriber = nullptr;
bool foreign = false;  // a tool is subscribed
std::map<std::string, CUptiResult> faults;
std::atomic<int> told{0};
std::string replaced;  // the bytes handed out as the next image; empty: the image

void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
  CUpti_CallbackFunc callback = nullptr;
  void *user = nullptr;
  {
    std::lock_guard lock(mutex);
    if (!subscriber || (!subscriber->domains.count(domain) && !subscriber->callbacks.count({domain, id}))) return;
    callback = subscriber->callback;
    user = subscriber->data;
  }
  ++told;
  callback(user, domain, id, data);
}

void on_api(bool enter, uint32_t id, const char *name, const void *params, CUresult *result, uint32_t correlation) {
  CUpti_CallbackData data{};
  data.callbackSite = enter ? CUPTI_API_ENTER : CUPTI_API_EXIT;
  data.functionName = name;
  data.functionParams = params;
  data.functionReturnValue = result;
  data.correlationId = correlation;
  tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}

void on_module(bool loaded, uint32_t id, const char *image, size_t size) {
  std::string bytes(image ? image : "", size);
  if (loaded && !replaced.empty()) bytes = std::exchange(replaced, {});
  CUpti_ModuleResourceData module{id, bytes.size(), bytes.data()};
  CUpti_ResourceData data{};
  data.resourceDescriptor = &module;
  tell(CUPTI_CB_DOMAIN_RESOURCE,
       loaded ? CUPTI_CBID_RESOURCE_MODULE_LOADED : CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &data);
}

const Observer kObserver{on_api, on_module};

bool listen(const Observer *observer) {
  const char *path = std::getenv("HELIOGRAPH_LIBCUDA");
  void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  auto observe =
      driver ? reinterpret_cast<void (*)(const Observer *)>(dlsym(driver, "fake_observe")) : nullptr;
  if (observe) observe(observer);
  return observe != nullptr;
}

CUptiResult fault(const char *call) {
  const auto at = faults.find(call);
  if (at == faults.end()) return CUPTI_SUCCESS;
  const CUptiResult result = at->second;
  faults.erase(at);
  return result;
}

}  // namespace

CUPTI_ENTRY cuptiSubscribe(CUpti_SubscriberHandle *out, CUpti_CallbackFunc callback, void *data) {
  std::lock_guard lock(mutex);
  if (CUptiResult refused = fault("cuptiSubscribe"); refused != CUPTI_SUCCESS) return refused;
  if (subscriber || foreign) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  if (!listen(&kObserver)) return CUPTI_ERROR_NOT_INITIALIZED;
  *out = subscriber = new CUpti_Subscriber_st{callback, data, {}, {}};
  return CUPTI_SUCCESS;
}

CUPTI_ENTRY cuptiUnsubscribe(CUpti_SubscriberHandle handle) {
  std::lock_guard lock(mutex);
  if (CUptiResult refused = fault("cuptiUnsubscribe"); refused != CUPTI_SUCCESS) return refused;
  if (!handle || handle != subscriber) return CUPTI_ERROR_INVALID_PARAMETER;
  listen(nullptr);
  delete std::exchange(subscriber, nullptr);
  return CUPTI_SUCCESS;
}

CUPTI_ENTRY cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain) {
  std::lock_guard lock(mutex);
  if (CUptiResult refused = fault("cuptiEnableDomain"); refused != CUPTI_SUCCESS) return refused;
  if (!handle || handle != subscriber || domain >= CUPTI_CB_DOMAIN_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable) handle->domains.insert(domain);
  else handle->domains.erase(domain);
  return CUPTI_SUCCESS;
}

CUPTI_ENTRY cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id) {
  std::lock_guard lock(mutex);
  if (CUptiResult refused = fault("cuptiEnableCallback"); refused != CUPTI_SUCCESS) return refused;
  if (!handle || handle != subscriber || domain >= CUPTI_CB_DOMAIN_SIZE) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable) handle->callbacks.insert({domain, id});
  else handle->callbacks.erase({domain, id});
  return CUPTI_SUCCESS;
}

CUPTI_ENTRY cuptiGetResultString(CUptiResult result, const char **text) {
  static std::string out;
  if (result == 998) return CUPTI_ERROR_INVALID_PARAMETER;  // a code without a sentence
  out = "the fake's sentence for CUPTI code " + std::to_string(result);
  *text = out.c_str();
  return CUPTI_SUCCESS;
}

// Drops what an earlier test left behind.
CONTROL void fake_cupti_reset() {
  std::lock_guard lock(mutex);
  if (subscriber) listen(nullptr);
  delete std::exchange(subscriber, nullptr);
  foreign = false;
  faults.clear();
  replaced.clear();
  told = 0;
}
CONTROL void fake_cupti_fail(const char *call, int code) { faults[call] = static_cast<CUptiResult>(code); }
CONTROL void fake_cupti_tool(int present) { foreign = present != 0; }
CONTROL void fake_cupti_replace(const char *bytes, size_t size) { replaced.assign(bytes, size); }
CONTROL int fake_cupti_subscribed() { return subscriber != nullptr; }
CONTROL int fake_cupti_told() { return told; }
