#include "host_stream.h"

#include "host_driver.h"

namespace hg {

uint64_t EventState::recorded() const {
  std::lock_guard lock(mutex_);
  return recorded_;
}

void EventState::complete(uint64_t record) {
  std::lock_guard lock(mutex_);
  completed_ = std::max(completed_, record);
  changed_.notify_all();
}

void EventState::await(uint64_t record) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= record; });
}

bool EventState::done() const {
  std::lock_guard lock(mutex_);
  return completed_ >= recorded_;
}

std::optional<HostEvent::Captured> HostEvent::captured() const {
  std::lock_guard lock(mutex_);
  return captured_;
}

void HostEvent::check_plain(const char *doing) const {
  device_->check_process(doing);
  if (captured())
    throw Error("GraphStateError", doing, "an event recorded during a stream capture", "an event of executed work",
                "such an event only orders the streams of its capture");
}

void HostEvent::synchronize() {
  check_plain("waiting for an event");
  state_->await(state_->recorded());
}

bool HostEvent::query() const {
  check_plain("asking for an event");
  return state_->done();
}

HostStream::HostStream(std::shared_ptr<HostDevice> device, std::shared_ptr<StreamQueue> queue)
    : device_(std::move(device)), queue_(std::move(queue)) {
  device_->counts().streams_live.fetch_add(1);
}

HostStream::~HostStream() {
  device_->counts().streams_live.fetch_sub(1);
  if (device_->forked()) return;
  if (auto current = capture()) current->leave(this);
  queue_->retire();
}

std::shared_ptr<Capture> HostStream::capture() const {
  std::lock_guard lock(mutex_);
  return capture_ && capture_->active() ? capture_ : nullptr;
}

void HostStream::check_not_capturing(const char *doing) const {
  if (capturing())
    throw Error("GraphStateError", doing, "a stream that is capturing", "a stream that is not", "end the capture first");
}

HostEvent &HostStream::own_event(const std::shared_ptr<Event> &event, const char *doing) const {
  auto *own = dynamic_cast<HostEvent *>(event.get());
  if (!own || own->device_ != device_)
    throw Error("UsageError", doing, "an event of another device", "an event of the stream's device",
                "create it on the same device");
  return *own;
}

void HostStream::submit(Node node) {
  device_->check_open("submitting work");
  if (auto current = capture()) return current->add(this, std::move(node));
  check_node(node);
  struct Single {  // a schedule of one node, and the function that keeps its code loaded
    Schedule schedule;
    std::shared_ptr<Function> function;
  };
  LoweredNode lowered = lower(node);
  ScheduledNode scheduled{lowered.run, lowered.params, lowered.blocks};
  auto single = std::make_shared<Single>(make_schedule({&scheduled, 1}, {}, device_->workers()), node.kernel.function);
  for (Operation &operation : single->schedule.operations) operation.node = kNoNode;
  uint64_t number = device_->launches();
  push([&]() -> Task {
    return {[single, number, &pool = device_->pool(), &counts = device_->counts()](Worker &lead) {
      pool.run(lead, single->schedule, number);
      counts.nodes_run.fetch_add(1);
    }};
  });
}

void HostStream::record(const std::shared_ptr<Event> &event) {
  constexpr const char *doing = "recording an event";
  device_->check_open(doing);
  HostEvent &own = own_event(event, doing);
  if (auto current = capture()) {
    std::lock_guard lock(own.mutex_);
    own.captured_ = HostEvent::Captured{current, current->tips(this)};
    return;
  }
  {
    std::lock_guard lock(own.mutex_);
    own.captured_.reset();
  }
  own.state_->record([&](uint64_t number) {
    push([&]() -> Task { return {[state = own.state_, number](Worker &) { state->complete(number); }}; });
  });
}

void HostStream::wait(const std::shared_ptr<Event> &event) {
  constexpr const char *doing = "waiting for an event on a stream";
  device_->check_open(doing);
  HostEvent &own = own_event(event, doing);
  auto current = capture();
  auto captured = own.captured();
  if (!captured) {
    if (current)
      throw Error("GraphStateError", doing, "an event recorded outside the capture", "an event of the same capture",
                  "record it on a stream that is capturing");
    uint64_t number = own.state_->recorded();
    if (number) push([&]() -> Task { return {[state = own.state_, number](Worker &) { state->await(number); }}; });
    return;
  }
  if (!captured->capture->active() || (current && current != captured->capture))
    throw Error("GraphStateError", doing, "an event of another capture, or of one that is over",
                "an event of the same capture", "record it again");
  captured->capture->join(this, captured->tips);
  std::lock_guard lock(mutex_);
  capture_ = captured->capture;
}

void HostStream::synchronize() {
  constexpr const char *doing = "waiting for a stream";
  device_->check_process(doing);
  check_not_capturing(doing);
  queue_->await_all();
}

bool HostStream::query() const {
  constexpr const char *doing = "asking for a stream";
  device_->check_process(doing);
  check_not_capturing(doing);
  return queue_->idle();
}

void HostStream::begin_capture() {
  constexpr const char *doing = "beginning a stream capture";
  device_->check_open(doing);
  check_not_capturing(doing);
  auto graph = std::make_shared<HostTemplate>(device_);
  std::lock_guard lock(mutex_);
  capture_ = std::make_shared<Capture>(std::move(graph), this);
}

std::shared_ptr<Template> HostStream::end_capture() {
  auto current = capture();
  if (!current)
    throw Error("GraphStateError", "ending a stream capture", "a stream that is not capturing",
                "a stream on which a capture was begun", "begin a capture first");
  return current->end(this);
}

}  // namespace hg
