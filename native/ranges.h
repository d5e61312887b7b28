// Ranges of a span, handed out lowest free offset first: the same calls in the same order get the same offsets.
// The same rule as Ranges of heliograph/capture/arena.py.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hg {

class Ranges {
 public:
  // Offsets are multiples of `unit`, and at least `gap` bytes lie between two ranges that are out at the same time.
  Ranges(uint64_t span, uint64_t unit, uint64_t gap) : span_(span), unit_(unit), gap_(gap) {}
  std::optional<uint64_t> take(uint64_t size);  // nothing if the span has no room
  bool give(uint64_t offset);                   // false if no range that is out begins there
  uint64_t peak() const { return peak_; }       // what the span needed so far, gaps included
  std::vector<std::pair<uint64_t, uint64_t>> taken() const;  // (offset, size asked for), ascending
  bool empty() const { return taken_.empty(); }

 private:
  struct Taken {
    uint64_t size, room;
  };
  uint64_t span_, unit_, gap_, end_ = 0, peak_ = 0;
  std::map<uint64_t, Taken> taken_;
  std::map<uint64_t, uint64_t> holes_;  // offset -> size below end_; never adjacent, and the last never touches end_
};

}  // namespace hg
