#include "host_queue.h"

#include <string>

#include "error.h"
#include "futex.h"

namespace hg {

StreamQueue::StreamQueue(Pool &pool, StatusPage &page, uint32_t number)
    : pool_(pool), page_(page), slot_(page.take_slot()), thread_(&StreamQueue::lead, this, number) {}

StreamQueue::~StreamQueue() {
  stop();
  page_.give_slot(slot_);
}

void StreamQueue::push(const std::function<Task()> &make) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < kDepth || stopping_; });
    if (stopping_)
      throw Error("UsageError", "submitting work to a stream", "a closed device", "an open device", "open a device");
    tasks_.push_back(make());
    pushed_.fetch_add(1, std::memory_order_release);
  }
  changed_.notify_all();
}

void StreamQueue::await_all() {
  std::unique_lock lock(mutex_);
  uint64_t until = pushed_.load();
  changed_.wait(lock, [&] { return done_ >= until; });
}

bool StreamQueue::idle() const {
  std::lock_guard lock(mutex_);
  return done_ == pushed_.load();
}

void StreamQueue::retire() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

bool StreamQueue::retired() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void StreamQueue::stop() {
  retire();
  std::call_once(joined_, [&] { thread_.join(); });
}

void StreamQueue::lead(uint32_t number) {
  Worker worker(page_, slot_, "hg-stream-" + std::to_string(number), pool_.lead_cpus(number));
  for (uint64_t done = 0;; ++done) {
    // The next launch of a busy stream comes within microseconds: a short spin saves the wake-up.
    auto end = std::chrono::steady_clock::now() + pool_.spin();
    while (pushed_.load(std::memory_order_acquire) == done && std::chrono::steady_clock::now() < end) pause();
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty() || stopping_; });
      if (tasks_.empty()) {
        ended_ = true;
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task.run(worker);
    task.run = nullptr;  // what it holds is gone before the work counts as done
    std::lock_guard lock(mutex_);
    ++done_;
    if (task.counted) task.counted();
    changed_.notify_all();
  }
}

uint64_t Flights::submit() {
  std::lock_guard lock(mutex_);
  return submitted_++;
}

void Flights::await_turn(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ == ticket; });
}

void Flights::finish() {
  std::lock_guard lock(mutex_);
  ++finished_;
  changed_.notify_all();
}

uint64_t Flights::in_flight() const {
  std::lock_guard lock(mutex_);
  return submitted_ - finished_;
}

void Flights::drain() {
  std::unique_lock lock(mutex_);
  uint64_t until = submitted_;
  changed_.wait(lock, [&] { return finished_ >= until; });
}

}  // namespace hg
