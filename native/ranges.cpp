#include "ranges.h"

#include <algorithm>
#include <iterator>

namespace hg {

std::optional<uint64_t> Ranges::take(uint64_t size) {
  if (size > span_ || gap_ + unit_ > span_ - size) return {};
  const uint64_t need = (size + gap_ + unit_ - 1) / unit_ * unit_;
  uint64_t offset = end_;
  auto hole = std::find_if(holes_.begin(), holes_.end(), [need](const auto &it) { return it.second >= need; });
  if (hole != holes_.end()) {
    const uint64_t room = hole->second;
    offset = hole->first;
    holes_.erase(hole);
    if (room > need) holes_[offset + need] = room - need;
  } else {
    if (need > span_ - end_) return {};
    end_ += need;
    peak_ = std::max(peak_, end_);
  }
  taken_[offset] = {size, need};
  return offset;
}

bool Ranges::give(uint64_t offset) {
  const auto at = taken_.find(offset);
  if (at == taken_.end()) return false;
  uint64_t start = offset, room = at->second.room;
  taken_.erase(at);
  auto after = holes_.upper_bound(start);
  if (after != holes_.end() && after->first == start + room) {
    room += after->second;
    after = holes_.erase(after);
  }
  if (after != holes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == start) {
      start = before->first;
      room += before->second;
      holes_.erase(before);
    }
  }
  if (start + room == end_)
    end_ = start;
  else
    holes_[start] = room;
  return true;
}

std::vector<std::pair<uint64_t, uint64_t>> Ranges::taken() const {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const auto &[offset, range] : taken_) out.emplace_back(offset, range.size);
  return out;
}

}  // namespace hg
