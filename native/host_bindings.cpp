// The host device's constructor.
#include "bindings.h"

namespace hg {

void register_host(nanobind::module_ &) {}

}  // namespace hg
