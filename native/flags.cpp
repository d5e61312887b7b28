#include "flags.h"

#include <array>
#include <utility>

#include "driver.h"

namespace hg {
namespace {

constexpr std::array<std::pair<uint32_t, const char *>, 4> kNames = {{{kAutoFreeOnLaunch, "AUTO_FREE_ON_LAUNCH"},
                                                                     {kUpload, "UPLOAD"},
                                                                     {kDeviceLaunch, "DEVICE_LAUNCH"},
                                                                     {kUseNodePriority, "USE_NODE_PRIORITY"}}};
constexpr uint32_t kSupported = kAutoFreeOnLaunch | kUseNodePriority;

}  // namespace

std::string flag_names(uint32_t flags) {
  if (flags == 0) return "no flag (0)";
  std::string out;
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    if (!(flags & bit)) continue;
    const char *name = "unknown";
    for (const auto &[value, text] : kNames)
      if (value == bit) name = text;
    out += (out.empty() ? "" : " | ") + std::string(name) + " (" + std::to_string(bit) + ")";
  }
  return out;
}

void check_flags(uint32_t flags) {
  if ((flags & ~kSupported) == 0) return;
  throw Error("FlagsError", "instantiating a graph", flag_names(flags & ~kSupported),
              "no flag, AUTO_FREE_ON_LAUNCH (1), USE_NODE_PRIORITY (8) or both (9)", "leave the other flags out: a rebuilt executable could not honour them");
}

}  // namespace hg
