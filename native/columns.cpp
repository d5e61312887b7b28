// Index arithmetic over the columns, table by table. All sums are of values already bounded by a column's length or
// by a buffer's end, so none can wrap; products are checked before they are made.
#include "columns.h"

#include <algorithm>

#include "text.h"

namespace hg {
namespace {

enum Kind : uint8_t { kKernel = 0, kCopy = 1, kMemset = 2, kEmpty = 5 };

[[noreturn]] void refuse(const char *rule, const std::string &found, const std::string &required) {
  throw Error("FormatError", "checking graphs.safetensors", found, required + " (" + rule + ")",
              "the file was not written by Heliograph, or was changed; export again");
}

void require_rows(const char *name, size_t rows, size_t wanted) {
  if (rows != wanted) refuse("M70", text(rows, " rows of ", name), text(wanted, ": as many as its table has"));
}

// A column of offsets: `rows` spans that cover [0, total) in order.
template <class T>
void check_offsets(const char *name, const Column<T> &offsets, size_t rows, size_t total) {
  require_rows(name, offsets.size(), rows + 1);
  if (offsets[0] != 0) refuse("M70", text(name, " that begins with ", offsets[0]), "0");
  for (size_t i = 0; i < rows; ++i)
    if (offsets[i + 1] < offsets[i])
      refuse("M70", text(name, " that descends at row ", i + 1), "offsets that never descend");
  if (offsets[rows] != total) refuse("M70", text(name, " that ends with ", offsets[rows]), text(total));
}

class Checker {
 public:
  Checker(const ColumnSet &columns, const CatalogueFacts &facts) : columns_(columns), facts_(facts) {}

  void run() {
    for (const auto &function : facts_.functions)
      for (uint64_t pointer : function.pointers)
        if (function.param_bytes < 8 || pointer > function.param_bytes - 8)
          refuse("M38", text("a pointer at ", pointer), text("one that ends within ", function.param_bytes, " bytes"));
    check_tables();
    check_strings();
    check_nodes();
    check_kernels();
    check_attributes();
    check_memsets();
    check_copies();
    check_edges();
    check_collectives();
    size_t chunks = columns_.bytes("weights.chunks", 32).size() / 32;
    if (chunks != facts_.chunks) refuse("M46", text(chunks, " rows of weights.chunks"), text(facts_.chunks));
  }

 private:
  using U8 = Column<uint8_t>;
  using U32 = Column<uint32_t>;
  using U64 = Column<uint64_t>;

  U32 u32(const char *name, size_t width = 1) const { return columns_.get<uint32_t>(name, width); }
  U64 u64(const char *name) const { return columns_.get<uint64_t>(name); }

  // Graphs against core.json, and the tables' own lengths.
  void check_tables() {
    size_t graphs = facts_.graphs.size();
    kind_ = columns_.get<uint8_t>("node.kind");
    edge_to_ = u32("edge.to");
    function_ = u32("kernel.function");
    U32 flags = u32("graph.flags");
    require_rows("graph.flags", flags.size(), graphs);
    check_offsets("graph.nodes", graph_nodes_ = u32("graph.nodes"), graphs, kind_.size());
    check_offsets("graph.edges", graph_edges_ = u32("graph.edges"), graphs, edge_to_.size());
    for (size_t g = 0; g < graphs; ++g) {
      const auto &graph = facts_.graphs[g];
      uint32_t nodes = graph_nodes_[g + 1] - graph_nodes_[g], edges = graph_edges_[g + 1] - graph_edges_[g];
      if (nodes != graph.nodes || edges != graph.edges || flags[g] != graph.flags)
        refuse("M70", text("graph ", g, " of ", nodes, " nodes, ", edges, " edges, flags ", flags[g]),
               text(graph.nodes, ", ", graph.edges, ", ", graph.flags, " as in core.json"));
    }
  }

  void check_strings() {
    U64 offsets = u64("string.offsets");
    auto bytes = columns_.bytes("string.bytes", 1);
    if (offsets.size() == 0) refuse("M70", "no rows of string.offsets", "at least one");
    strings_ = offsets.size() - 1;
    check_offsets("string.offsets", offsets, strings_, bytes.size());
    for (size_t s = 0; s < strings_; ++s)
      if (!is_utf8(bytes.subspan(offsets[s], offsets[s + 1] - offsets[s])))
        refuse("M73", text("string ", s, " in another encoding"), "UTF-8");
  }

  static bool is_utf8(std::span<const uint8_t> text) {
    for (size_t i = 0; i < text.size();) {
      uint8_t first = text[i++];
      if (first < 0x80) continue;
      int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
      if (first < 0xC2 || first > 0xF4 || text.size() - i < size_t(more)) return false;
      // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
      uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
      uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
      for (int k = 0; k < more; ++k, low = 0x80, high = 0xBF)
        if (text[i] < low || text[i++] > high) return false;
    }
    return true;
  }

  void check_nodes() {
    U32 row = u32("node.row"), order = u32("node.order"), origin = u32("node.origin");
    require_rows("node.row", row.size(), kind_.size());
    require_rows("node.order", order.size(), kind_.size());
    require_rows("node.origin", origin.size(), kind_.size());
    uint32_t next[4] = {};  // kernel, copy, memset; empty nodes stay at 0
    for (size_t g = 0; g < facts_.graphs.size(); ++g)
      for (size_t n = graph_nodes_[g]; n < graph_nodes_[g + 1]; ++n) {
        uint8_t kind = kind_[n];
        if (kind > kMemset && kind != kEmpty) refuse("M71", text("node ", n, " of kind ", kind), "0, 1, 2 or 5");
        uint32_t wanted = kind == kEmpty ? 0 : next[kind]++;
        if (row[n] != wanted) refuse("M71", text("node ", n, " with row ", row[n]), text(wanted));
        if (order[n] != n - graph_nodes_[g])
          refuse("M72", text("node ", n, " with order ", order[n]), text(n - graph_nodes_[g], ", its place"));
        if (origin[n] >= strings_) refuse("M73", text("node ", n, " from string ", origin[n]), text("< ", strings_));
      }
    kernels_ = next[kKernel];
    copies_ = next[kCopy];
    memsets_ = next[kMemset];
    if (function_.size() != kernels_)
      refuse("M71", text(function_.size(), " rows of kernel.*"), text(kernels_, ", one for each kernel node"));
  }

  void check_kernels() {
    U32 grid = u32("kernel.grid", 3), block = u32("kernel.block", 3), shared = u32("kernel.shared");
    U8 form = columns_.get<uint8_t>("kernel.form");
    auto params = columns_.bytes("param.bytes", 1);
    U64 param_at = u64("kernel.params"), ref_offset = u64("ref.offset");
    U32 ref_at = u32("ref.at"), ref_buffer = u32("ref.buffer"), refs = u32("kernel.refs");
    require_rows("kernel.grid", grid.size(), 3 * kernels_);
    require_rows("kernel.block", block.size(), 3 * kernels_);
    require_rows("kernel.shared", shared.size(), kernels_);
    require_rows("kernel.form", form.size(), kernels_);
    require_rows("ref.buffer", ref_buffer.size(), ref_at.size());
    require_rows("ref.offset", ref_offset.size(), ref_at.size());
    check_offsets("kernel.params", param_at, kernels_, params.size());
    check_offsets("kernel.refs", refs, kernels_, ref_at.size());
    std::vector<bool> used(facts_.functions.size());
    for (size_t k = 0; k < kernels_; ++k) {
      uint32_t number = function_[k];
      if (number >= used.size()) refuse("M74", text("kernel ", k, " of function ", number), text("< ", used.size()));
      used[number] = true;
      check_launch(k, grid, block, shared[k], form[k]);
      const auto &function = facts_.functions[number];
      auto own = params.subspan(param_at[k], param_at[k + 1] - param_at[k]);
      if (own.size() != function.param_bytes)
        refuse("M75", text("kernel ", k, " with ", own.size(), " bytes of parameters"), text(function.param_bytes));
      check_references(k, own, refs[k], refs[k + 1], ref_at, ref_buffer, ref_offset);
      if (facts_.host) check_pointers(k, function, own, refs[k], refs[k + 1], ref_at);
    }
    auto unused = std::find(used.begin(), used.end(), false);
    if (unused != used.end())
      refuse("M74", text("function ", unused - used.begin(), " that no node launches"), "exactly the functions used");
  }

  void check_launch(size_t k, const U32 &grid, const U32 &block, uint32_t shared, uint8_t form) const {
    bool one = true;
    for (size_t i = 3 * k; i < 3 * k + 3; ++i) {
      if (grid[i] == 0 || block[i] == 0) refuse("M74", text("kernel ", k, " with an extent of 0"), "at least 1");
      one = one && block[i] == 1 && (i == 3 * k || grid[i] == 1);
    }
    if (facts_.host && (!one || shared != 0))
      refuse("M74", text("kernel ", k, " with a launch of another device"), "grid (blocks, 1, 1), block (1, 1, 1)");
    if (form > (facts_.host ? 0 : 1)) refuse("M75", text("kernel ", k, " of form ", form), "a known form");
  }

  void check_references(size_t k, std::span<const uint8_t> params, size_t first, size_t last, const U32 &at,
                        const U32 &buffer, const U64 &offset) const {
    uint64_t free = 0;  // where the next reference may begin
    for (size_t r = first; r < last; ++r) {
      if (at[r] < free || uint64_t(at[r]) + 8 > params.size())
        refuse("M76", text("kernel ", k, " with a reference at ", at[r]),
               text("from ", free, ", ending within ", params.size(), " bytes"));
      free = uint64_t(at[r]) + 8;
      if (buffer[r] >= facts_.buffers.size())
        refuse("M76", text("reference ", r, " to buffer ", buffer[r]), text("< ", facts_.buffers.size()));
      const auto &target = facts_.buffers[buffer[r]];
      if (offset[r] > target.size)
        refuse("M76", text("reference ", r, " to byte ", offset[r]), text("at most ", target.size));
      uint64_t literal = Column<uint64_t>(params.subspan(at[r], 8))[0];
      if (literal != target.address + offset[r])
        refuse("M77", text("kernel ", k, " with pointer ", hex(literal)),
               text(hex(target.address + offset[r]), ", as its reference says"));
    }
  }

  // The function states where its pointers are: a reference at each that is not null, and nowhere else.
  static void check_pointers(size_t k, const CatalogueFacts::Function &function, std::span<const uint8_t> params,
                             size_t first, size_t last, const U32 &at) {
    size_t r = first;
    for (uint64_t pointer : function.pointers) {
      bool referenced = r < last && at[r] == pointer;
      bool null = Column<uint64_t>(params.subspan(pointer, 8))[0] == 0;
      if (referenced == null)
        refuse("M78", text("kernel ", k, null ? " with a reference for the null pointer at " :
                                                " without a reference for the pointer at ", pointer),
               "a reference exactly where a pointer is not null");
      r += referenced;
    }
    if (r != last) refuse("M78", text("kernel ", k, " with a reference at ", at[r]), "references at pointers only");
  }

  template <class T>
  void check_ascending(const char *name, const T &offsets, size_t rows, const U32 &ids) const {
    check_offsets(name, offsets, rows, ids.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t a = offsets[i] + 1; a < offsets[i + 1]; ++a)
        if (ids[a] <= ids[a - 1]) refuse("M79", text("row ", i, " of ", name, " out of order"), "ascending ids");
    if (facts_.host && ids.size() != 0) refuse("M79", text(ids.size(), " attributes"), "none on the host");
  }

  void check_attributes() const {
    U32 attr = u32("attr.id"), function_attr = u32("function.attr.id");
    require_rows("attr.value", columns_.bytes("attr.value", 64).size() / 64, attr.size());
    require_rows("function.attr.value", columns_.get<int64_t>("function.attr.value").size(), function_attr.size());
    check_ascending("kernel.attrs", u32("kernel.attrs"), kernels_, attr);
    check_ascending("function.attrs", u32("function.attrs"), facts_.functions.size(), function_attr);
  }

  // A place of `size` bytes at `offset` of a buffer, said to be at `address`.
  void check_place(const char *rule, const std::string &what, uint32_t buffer, uint64_t offset, uint64_t size,
                   uint64_t address, bool written) const {
    if (buffer >= facts_.buffers.size())
      refuse(rule, text(what, " in buffer ", buffer), text("< ", facts_.buffers.size()));
    const auto &target = facts_.buffers[buffer];
    if (offset > target.size || size > target.size - offset)
      refuse(rule, text(what, " of ", size, " bytes at ", offset), text("within the buffer's ", target.size, " bytes"));
    if (address != target.address + offset)
      refuse(rule, text(what, " at ", hex(address)), hex(target.address + offset));
    if (written && !target.writable) refuse("M82", text(what, " to a buffer that is only read"), "a writable buffer");
  }

  void check_memsets() const {
    U64 address = u64("memset.address"), width = u64("memset.width"), height = u64("memset.height");
    U64 pitch = u64("memset.pitch"), offset = u64("memset.offset");
    U32 value = u32("memset.value"), element = u32("memset.element"), buffer = u32("memset.buffer");
    if (address.size() != memsets_)
      refuse("M71", text(address.size(), " rows of memset.*"), text(memsets_, ", one for each memset"));
    for (size_t rows : {width.size(), height.size(), pitch.size(), offset.size(), value.size(), element.size(),
                        buffer.size()})
      require_rows("memset.*", rows, memsets_);
    for (size_t m = 0; m < memsets_; ++m) {
      uint32_t item = element[m];
      if ((item != 1 && item != 2 && item != 4) || (item < 4 && value[m] >> (8 * item)) || !width[m] || !height[m])
        refuse("M80", text("memset ", m, " of ", height[m], " x ", width[m], " x ", item, " bytes, value ", value[m]),
               "elements of 1, 2 or 4 bytes, a value that fits, extents of at least 1");
      if (facts_.host && (item != 1 || height[m] != 1)) refuse("M80", text("memset ", m), "one row of bytes on the host");
      uint64_t row_bytes, above, size;
      if (__builtin_mul_overflow(width[m], uint64_t(item), &row_bytes) ||
          (height[m] == 1 ? pitch[m] != 0 : pitch[m] < row_bytes) ||
          __builtin_mul_overflow(pitch[m], height[m] - 1, &above) || __builtin_add_overflow(above, row_bytes, &size))
        refuse("M80", text("memset ", m, " with a pitch of ", pitch[m]), "0 for one row, else at least a row's bytes");
      check_place("M80", text("memset ", m), buffer[m], offset[m], size, address[m], true);
    }
  }

  void check_copies() const {
    U64 to = u64("copy.to"), from = u64("copy.from"), bytes = u64("copy.bytes");
    U64 to_offset = u64("copy.to.offset"), from_offset = u64("copy.from.offset");
    U32 to_buffer = u32("copy.to.buffer"), from_buffer = u32("copy.from.buffer");
    if (to.size() != copies_) refuse("M71", text(to.size(), " rows of copy.*"), text(copies_, ", one for each copy"));
    for (size_t rows : {from.size(), bytes.size(), to_offset.size(), from_offset.size(), to_buffer.size(),
                        from_buffer.size()})
      require_rows("copy.*", rows, copies_);
    for (size_t c = 0; c < copies_; ++c) {
      if (bytes[c] == 0) refuse("M81", text("copy ", c, " of 0 bytes"), "at least 1");
      check_place("M81", text("copy ", c), to_buffer[c], to_offset[c], bytes[c], to[c], true);
      check_place("M81", text("copy ", c), from_buffer[c], from_offset[c], bytes[c], from[c], false);
    }
  }

  // Pairs (first, second) ascend by (major, minor), each once.
  static bool ascends(const U32 &major, const U32 &minor, size_t i) {
    return major[i - 1] < major[i] || (major[i - 1] == major[i] && minor[i - 1] < minor[i]);
  }

  void check_edges() const {
    U32 from = u32("edge.from");
    auto data = columns_.bytes("edge.data", 8);
    require_rows("edge.from", from.size(), edge_to_.size());
    require_rows("edge.data", data.size() / 8, edge_to_.size());
    for (size_t g = 0; g < facts_.graphs.size(); ++g)
      for (size_t e = graph_edges_[g]; e < graph_edges_[g + 1]; ++e) {
        if (edge_to_[e] >= facts_.graphs[g].nodes || from[e] >= edge_to_[e])
          refuse("M83", text("edge ", e, " from ", from[e], " to ", edge_to_[e]), "a later node of the same graph");
        if (e > graph_edges_[g] && !ascends(edge_to_, from, e))
          refuse("M83", text("edge ", e, " out of order"), "edges ascending by target, then source");
        auto own = data.subspan(8 * e, 8);
        auto zero_from = own.begin() + (facts_.host ? 0 : 3);
        if (std::any_of(zero_from, own.end(), [](uint8_t byte) { return byte != 0; }))
          refuse("M84", text("edge ", e, " with unknown data"), "two ports, a type and five zeros; zeros on the host");
      }
  }

  void check_collectives() const {
    U32 node = u32("collective.node"), consumer = u32("collective.consumer"), first = u32("graph.collectives");
    require_rows("collective.consumer", consumer.size(), node.size());
    check_offsets("graph.collectives", first, facts_.graphs.size(), node.size());
    for (size_t g = 0; g < facts_.graphs.size(); ++g)
      for (size_t q = first[g]; q < first[g + 1]; ++q) {
        if (consumer[q] >= facts_.graphs[g].nodes || node[q] >= consumer[q] ||
            kind_[graph_nodes_[g] + node[q]] != kKernel || kind_[graph_nodes_[g] + consumer[q]] != kKernel)
          refuse("M85", text("collective ", q, " of nodes ", node[q], " and ", consumer[q]),
                 "a kernel node and a later kernel node of the same graph");
        if (q > first[g] && !ascends(node, consumer, q))
          refuse("M85", text("collective ", q, " out of order"), "ascending pairs, each once");
      }
  }

  const ColumnSet &columns_;
  const CatalogueFacts &facts_;
  U8 kind_;
  U32 graph_nodes_, graph_edges_, edge_to_, function_;
  size_t strings_ = 0, kernels_ = 0, copies_ = 0, memsets_ = 0;
};

}  // namespace

std::span<const uint8_t> ColumnSet::bytes(const std::string &name, size_t row_bytes) const {
  auto found = columns_.find(name);
  if (found == columns_.end()) refuse("M62", "no column " + name, "every column of the format");
  if (found->second.size() % row_bytes)
    refuse("M63", text(found->second.size(), " bytes of ", name), text("rows of ", row_bytes, " bytes"));
  return found->second;
}

void check_columns(const ColumnSet &columns, const CatalogueFacts &facts) { Checker(columns, facts).run(); }

}  // namespace hg
