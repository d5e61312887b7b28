// Which kernel, function, library or module a driver call is about, from what CUPTI tells of the call.
#pragma once
#include <cuda.h>
#include <cupti.h>

namespace hg {

struct CallHandles {
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;  // or a kernel: launches take either under this type
  CUlibrary library = nullptr;
  CUmodule module = nullptr;
};

// Of a call that has returned. What a failed call was to give out is left out; all null for calls that name none.
CallHandles handles_of(CUpti_CallbackId call, const void *params, CUresult result);

}  // namespace hg
