// The worker pool without Python and without the fixed-address arena, so that the thread sanitizer can watch it:
// scripts/sanitize.sh thread. Plain memory shared between nodes is what it checks: a missing barrier is a data race.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "host_pool.h"
#include "host_queue.h"
#include "host_schedule.h"

namespace {

using namespace hg;

void expect(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// out[block] = x[block] * 3 + y[block] + 1, for the blocks of one node; not atomic on purpose.
struct Mix {
  const uint64_t *x, *y;
  uint64_t *out;
};
void mix(const void *params, uint32_t first, uint32_t last) {
  const auto &p = *static_cast<const Mix *>(params);
  for (uint32_t i = first; i < last; ++i) p.out[i] = p.x[i] * 3 + p.y[i] + 1;
}

constexpr uint32_t kBlocks = 64;
using Row = std::vector<uint64_t>;

// A random graph over a few rows, with the edges that its reads and writes need.
struct Graph {
  std::vector<Row> rows;
  std::vector<Mix> params;
  std::vector<Edge> edges;
  std::vector<uint32_t> blocks;

  Graph(uint32_t seed, uint32_t nodes) : rows(12, Row(kBlocks)), params(nodes), blocks(nodes) {
    std::mt19937 draw(seed);
    for (auto &row : rows)
      for (auto &value : row) value = draw();
    std::vector<std::vector<uint32_t>> users(rows.size());  // since the last write, which comes first
    for (uint32_t i = 0; i < nodes; ++i) {
      uint32_t x = draw() % rows.size(), y = draw() % rows.size(), out = draw() % rows.size();
      params[i] = {rows[x].data(), rows[y].data(), rows[out].data()};
      blocks[i] = draw() % 4 == 0 ? 1 : kBlocks;
      std::vector<bool> from(i);
      for (uint32_t user : users[out]) from[user] = true;
      for (uint32_t read : {x, y})
        if (!users[read].empty()) from[users[read].front()] = true;
      for (uint32_t before = 0; before < i; ++before)
        if (from[before]) edges.push_back({before, i, {}});
      users[x].push_back(i);
      users[y].push_back(i);
      users[out] = {i};
    }
  }

  Schedule schedule(uint32_t workers) const {
    std::vector<ScheduledNode> nodes;
    for (size_t i = 0; i < params.size(); ++i)
      nodes.push_back({mix, {reinterpret_cast<const uint8_t *>(&params[i]), sizeof(Mix)}, blocks[i]});
    return make_schedule(nodes, edges, workers);
  }
};

std::vector<Row> run_graph(uint32_t seed, uint32_t workers, int times) {
  Graph graph(seed, 300);
  StatusPage page(-1);
  Pool pool(page, {workers, {}, std::chrono::microseconds(20)});
  Schedule schedule = graph.schedule(workers);
  std::thread lead([&] {
    Worker worker(page, page.take_slot(), "lead", {});
    for (int i = 0; i < times; ++i) pool.run(worker, schedule, uint64_t(i));
  });
  lead.join();
  return graph.rows;
}

void test_results_do_not_depend_on_workers() {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    auto expected = run_graph(seed, 1, 5);
    for (uint32_t workers : {2u, 3u, 8u}) expect(run_graph(seed, workers, 5) == expected, "results are equal");
  }
}

void test_two_leads_share_the_helpers() {
  StatusPage page(-1);
  Pool pool(page, {3, {}, std::chrono::microseconds(20)});
  Graph a(11, 200), b(12, 200), a_alone(11, 200), b_alone(12, 200);
  auto lead = [&](Graph &graph) {
    Schedule schedule = graph.schedule(3);
    Worker worker(page, page.take_slot(), "lead", {});
    for (int i = 0; i < 50; ++i) pool.run(worker, schedule, uint64_t(i));
  };
  std::thread first([&] { lead(a); }), second([&] { lead(b); });
  first.join();
  second.join();
  std::thread([&] { lead(a_alone), lead(b_alone); }).join();
  expect(a.rows == a_alone.rows && b.rows == b_alone.rows, "two leads at once give what each gives alone");
}

// Launches of one executable from several streams take turns; its memory is not atomic.
void test_flights_take_turns() {
  StatusPage page(-1);
  Pool pool(page, {2, {}, std::chrono::microseconds(20)});
  Graph graph(21, 100), alone(21, 100);
  Schedule schedule = graph.schedule(2), once = alone.schedule(2);
  Flights flights;
  {
    std::vector<std::unique_ptr<StreamQueue>> queues;
    for (uint32_t i = 0; i < 3; ++i) queues.push_back(std::make_unique<StreamQueue>(pool, page, i));
    std::vector<std::thread> submitters;
    for (auto &queue : queues)
      submitters.emplace_back([&] {
        for (int i = 0; i < 30; ++i)
          queue->push([&]() -> Task {
            uint64_t ticket = flights.submit();
            auto run = [&, ticket](Worker &worker) {
              flights.await_turn(ticket);
              pool.run(worker, schedule, ticket);
            };
            return {run, [&] { flights.finish(); }};
          });
      });
    for (auto &submitter : submitters) submitter.join();
    flights.drain();
    expect(flights.in_flight() == 0, "drained");
  }
  std::thread([&] {
    Worker worker(page, page.take_slot(), "lead", {});
    for (int i = 0; i < 90; ++i) pool.run(worker, once, uint64_t(i));
  }).join();
  expect(graph.rows == alone.rows, "90 launches in turn");
}

void test_a_chain_of_small_nodes_is_one_chunk() {
  std::vector<Mix> params(50);
  std::vector<ScheduledNode> nodes;
  std::vector<Edge> edges;
  for (uint32_t i = 0; i < 50; ++i) {
    nodes.push_back({mix, {reinterpret_cast<const uint8_t *>(&params[i]), sizeof(Mix)}, i == 30 ? 8u : 1u});
    if (i) edges.push_back({i - 1, i, {}});
  }
  Schedule schedule = make_schedule(nodes, edges, 2);
  expect(schedule.steps() == 3, "a run of single blocks, one wide node, a run");
  expect(schedule.end(0) == 1 && schedule.chunks[0].end - schedule.chunks[0].first == 30, "the first run");
  expect(schedule.begin(1) == 1 && schedule.share(1, 1) == 4 && schedule.end(1) == 7, "two shares of three pieces");
  expect(schedule.begin(2) == 7 && schedule.end(2) == 8, "the last run waits for all blocks");
  Schedule alone = make_schedule(nodes, edges, 1);
  expect(alone.steps() == 1 && alone.chunks.size() == 1, "one worker needs no barrier");
}

// However a node is cut, its blocks are run once each.
void test_every_block_is_in_one_chunk() {
  Mix params{};
  for (uint32_t workers : {1u, 2u, 3u, 7u, 64u})
    for (uint32_t blocks : {1u, 2u, 5u, 64u, 1000u, 4'000'000'000u}) {
      ScheduledNode node{mix, {reinterpret_cast<const uint8_t *>(&params), sizeof(Mix)}, blocks};
      Schedule schedule = make_schedule({&node, 1}, {}, workers);
      uint32_t at = 0;
      for (const Operation &operation : schedule.operations) {
        expect(operation.first == at && operation.last > at, "pieces follow each other");
        at = operation.last;
      }
      expect(at == blocks && schedule.end(0) == schedule.chunks.size(), "to the end");
    }
}

void test_an_empty_node_orders_without_a_step() {
  std::vector<Mix> params(2);
  auto bytes = [&](int i) { return std::span(reinterpret_cast<const uint8_t *>(&params[i]), sizeof(Mix)); };
  std::vector<ScheduledNode> nodes = {{mix, bytes(0), 8}, {nullptr, {}, 0}, {mix, bytes(1), 8}};
  std::vector<Edge> edges = {{0, 1, {}}, {1, 2, {}}};
  expect(make_schedule(nodes, edges, 2).steps() == 2, "the third node waits for the first");
  expect(make_schedule(nodes, {}, 2).steps() == 1, "without edges it does not");
}

}  // namespace

int main() {
  test_a_chain_of_small_nodes_is_one_chunk();
  test_every_block_is_in_one_chunk();
  test_an_empty_node_orders_without_a_step();
  test_results_do_not_depend_on_workers();
  test_two_leads_share_the_helpers();
  test_flights_take_turns();
  std::puts("native pool test passed");
}
