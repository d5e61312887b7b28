// Streams and events of the host device.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "driver.h"
#include "host_capture.h"
#include "host_queue.h"

namespace hg {

class HostDevice;

// Held by the event and by every task that completes it or waits for it.
class EventState {
 public:
  uint64_t recorded() const;
  void complete(uint64_t record);
  void await(uint64_t record);
  bool done() const;
  // Gives the number of a new record to `push` while no other record or wait can look.
  template <class F>
  void record(F &&push) {
    std::lock_guard lock(mutex_);
    push(recorded_ + 1);
    ++recorded_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0, completed_ = 0;
};

class HostEvent : public Event {
 public:
  explicit HostEvent(std::shared_ptr<HostDevice> device) : device_(std::move(device)) {}
  void synchronize() override;
  bool query() const override;

 private:
  friend class HostStream;
  struct Captured {
    std::shared_ptr<Capture> capture;
    Tips tips;
  };
  std::optional<Captured> captured() const;
  void check_plain(const char *doing) const;

  std::shared_ptr<HostDevice> device_;
  std::shared_ptr<EventState> state_ = std::make_shared<EventState>();
  mutable std::mutex mutex_;  // guards captured_
  std::optional<Captured> captured_;  // of the last record, if the stream was capturing then
};

class HostStream : public Stream {
 public:
  HostStream(std::shared_ptr<HostDevice> device, std::shared_ptr<StreamQueue> queue);
  ~HostStream() override;  // does not wait: the device keeps the queue until its work is done
  void submit(Node node) override;
  void record(const std::shared_ptr<Event> &event) override;
  void wait(const std::shared_ptr<Event> &event) override;
  void synchronize() override;
  bool query() const override;
  void begin_capture() override;
  std::shared_ptr<Template> end_capture() override;
  bool capturing() const override { return capture() != nullptr; }

  void push(const std::function<Task()> &make) { queue_->push(make); }
  const HostDevice *device() const { return device_.get(); }

 private:
  std::shared_ptr<Capture> capture() const;  // null once it is over, on whichever stream it ended
  void check_not_capturing(const char *doing) const;
  HostEvent &own_event(const std::shared_ptr<Event> &event, const char *doing) const;

  std::shared_ptr<HostDevice> device_;
  std::shared_ptr<StreamQueue> queue_;
  mutable std::mutex mutex_;  // guards capture_
  std::shared_ptr<Capture> capture_;
};

}  // namespace hg
