// The CUDA device's constructor.
#include "bindings.h"

namespace hg {

void register_cuda(nanobind::module_ &) {}

}  // namespace hg
