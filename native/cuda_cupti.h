// CUPTI's entry points that we use, and which file they come from.
//
// A process must have one copy of CUPTI: the one that is already mapped (PyTorch carries its own), whatever else is
// asked for. It is opened for captures only; what serves never loads it.
#pragma once
#include <cuda.h>
#include <cupti.h>

#include <string>

#include "error.h"

namespace hg {

struct CuptiApi {
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiEnableDomain) enable_domain = nullptr;
  decltype(&::cuptiEnableCallback) enable_callback = nullptr;
  decltype(&::cuptiGetResultString) result_string = nullptr;
  std::string path;

  // The library that is mapped, else the one that `named` names, else HELIOGRAPH_LIBCUPTI. CaptureError if there is
  // none, or it lacks an entry point.
  static CuptiApi open(const std::string &named);
  // CaptureError for a failed call, with CUPTI's own sentence and, where another tool is in the way, which.
  Error error(CUptiResult result, const char *call) const;
};

}  // namespace hg
