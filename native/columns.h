// The columns of graphs.safetensors (docs/core-format.md 5): access to them, and the check of what they mean.
//
// check_columns is the only thing that stands between bytes and the code that rebuilds graphs, so it believes no
// count, offset or index before it has compared it. After it has passed, every index in the columns is in range.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "error.h"

namespace hg {

// A column as elements of T. Little-endian, of any alignment.
template <class T>
class Column {
 public:
  Column() = default;
  explicit Column(std::span<const uint8_t> bytes) : bytes_(bytes.data()), size_(bytes.size() / sizeof(T)) {}
  size_t size() const { return size_; }
  T operator[](size_t row) const {
    T value;
    std::memcpy(&value, bytes_ + row * sizeof(T), sizeof(T));
    return value;
  }
  const uint8_t *data() const { return bytes_; }

 private:
  const uint8_t *bytes_ = nullptr;
  size_t size_ = 0;
};

// Columns by name.
class ColumnSet {
 public:
  void add(std::string name, std::span<const uint8_t> bytes) { columns_[std::move(name)] = bytes; }
  // The column's bytes; FormatError (M62) if there is none, (M63) if they are no whole rows of `row_bytes`.
  std::span<const uint8_t> bytes(const std::string &name, size_t row_bytes) const;
  template <class T>
  Column<T> get(const std::string &name, size_t width = 1) const { return Column<T>(bytes(name, sizeof(T) * width)); }

 private:
  std::map<std::string, std::span<const uint8_t>> columns_;
};

// What core.json says and the columns must agree with.
struct CatalogueFacts {
  struct Function {
    uint64_t param_bytes;
    std::vector<uint64_t> pointers;  // ascending
  };
  struct Buffer {
    uint64_t address, size;
    bool writable;  // by a memset or a copy
  };
  struct Graph {
    uint64_t nodes, edges, flags;
  };
  bool host = true;
  std::vector<Function> functions;
  std::vector<Buffer> buffers;
  std::vector<Graph> graphs;
  uint64_t chunks = 0;
};

// Throws FormatError, whose `required` ends with the id of the broken rule.
void check_columns(const ColumnSet &columns, const CatalogueFacts &facts);

}  // namespace hg
