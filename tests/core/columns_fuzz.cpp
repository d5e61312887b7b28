// Alters the columns of a good catalogue at random and checks them, under sanitizers. Every outcome but an
// hg::Error or acceptance (a crash, another exception, a sanitizer's report) fails the run.
//
// Input: a file of records "name length\n" + bytes; the record "facts" holds native integers:
// host, F x (param_bytes, count, pointers...), B x (address, size, writable), G x (nodes, edges, flags), chunks,
// each list behind its length.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>

#include "columns.h"

namespace {

using Table = std::map<std::string, std::vector<uint8_t>>;

Table read_table(const char *path) {
  Table table;
  std::ifstream in(path, std::ios::binary);
  std::string name;
  size_t length;
  while (in >> name >> length) {
    in.get();
    table[name].resize(length);
    in.read(reinterpret_cast<char *>(table[name].data()), std::streamsize(length));
  }
  return table;
}

hg::CatalogueFacts read_facts(const std::vector<uint8_t> &raw) {
  size_t at = 0;
  auto next = [&] {
    uint64_t value;
    std::memcpy(&value, raw.data() + at, 8);
    at += 8;
    return value;
  };
  hg::CatalogueFacts facts;
  facts.host = next();
  for (uint64_t n = next(); n; --n) {
    facts.functions.push_back({next(), {}});
    for (uint64_t k = next(); k; --k) facts.functions.back().pointers.push_back(next());
  }
  for (uint64_t n = next(); n; --n) {
    uint64_t address = next(), size = next();
    facts.buffers.push_back({address, size, next() != 0});
  }
  for (uint64_t n = next(); n; --n) {
    uint64_t nodes = next(), edges = next();
    facts.graphs.push_back({nodes, edges, next()});
  }
  facts.chunks = next();
  return facts;
}

void alter(Table &table, std::mt19937_64 &random) {
  auto column = std::next(table.begin(), long(random() % table.size()));
  auto &bytes = column->second;
  size_t row = size_t(1) << random() % 4;
  switch (random() % 6) {
    case 0: bytes.resize(bytes.size() - std::min(bytes.size(), row)); break;
    case 1: bytes.resize(bytes.size() + row); break;
    case 2: bytes.resize(random() % 64); break;
    case 3: if (!bytes.empty()) bytes[random() % bytes.size()] = uint8_t(random()); break;
    case 4: if (!bytes.empty()) bytes[random() % bytes.size()] ^= uint8_t(1 << random() % 8); break;
    default:
      for (size_t at = random() % 9, i = 0; i < 8 && at + i < bytes.size(); ++i) bytes[at + i] = 0xFF;
  }
}

}  // namespace

int main(int, char **argv) {
  Table good = read_table(argv[1]);
  hg::CatalogueFacts facts = read_facts(good.extract("facts").mapped());
  std::mt19937_64 random(std::stoull(argv[2]));
  long refused = 0, accepted = 0;
  for (long run = std::stol(argv[3]); run; --run) {
    Table table = good;
    if (refused + accepted) for (uint64_t n = 1 + random() % 3; n; --n) alter(table, random);
    hg::ColumnSet columns;
    // A copy of exactly the column's length on the heap, so that one byte beyond it is seen.
    std::vector<std::unique_ptr<uint8_t[]>> held;
    for (auto &[name, bytes] : table) {
      held.emplace_back(new uint8_t[bytes.size()]);
      std::copy(bytes.begin(), bytes.end(), held.back().get());
      columns.add(name, {held.back().get(), bytes.size()});
    }
    try {
      hg::check_columns(columns, facts);
      ++accepted;
    } catch (const hg::Error &) {
      ++refused;
    }
  }
  std::cout << accepted << " " << refused << "\n";
}
