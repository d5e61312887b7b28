#include "host_worker.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hg {
namespace {

constexpr std::array kFaultSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr size_t kSignalStack = 64 << 10;  // a frame with AVX-512 state is about 3 KiB; a chained handler needs more
struct sigaction previous[64];

// Initial-exec: reading it in a signal handler must not allocate.
__attribute__((tls_model("initial-exec"))) thread_local const Worker *current = nullptr;

void die_by(int signal, const siginfo_t *info) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  sigaction(signal, &by_default, nullptr);
  // A fault happens again when the handler returns, with its own address. A signal that was sent does not.
  if (info->si_code <= 0) raise(signal);
}

void chain(int signal, siginfo_t *info, void *context) {
  const struct sigaction &before = previous[signal];
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else if (before.sa_handler == SIG_DFL)
    die_by(signal, info);
  else if (before.sa_handler != SIG_IGN)
    before.sa_handler(signal);
}

}  // namespace

bool inside_kernel(const Worker &worker) { return worker.slot_.node.load(std::memory_order_relaxed) != kIdle; }

void record_fault(const Worker &worker, int signal, uint64_t address) {
  FaultRecord &record = worker.page_.fault();
  uint32_t none = 0;
  if (!record.state.compare_exchange_strong(none, 1)) return;  // another worker was first
  record.signal = signal;
  record.address = address;
  record.launch = worker.slot_.launch.load(std::memory_order_relaxed);
  record.node = worker.slot_.node.load(std::memory_order_relaxed);
  record.worker = worker.index_;
  record.state.store(2);
}

namespace {

void on_fault(int signal, siginfo_t *info, void *context) {
  const Worker *worker = current;
  if (!worker || !inside_kernel(*worker)) return chain(signal, info, context);
  // A handler that was installed after ours has passed the signal on by sending it again: the address is lost then.
  record_fault(*worker, signal, info->si_code > 0 ? reinterpret_cast<uint64_t>(info->si_addr) : 0);
  die_by(signal, info);
}

void keep_fault_signals_only() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (int signal : kFaultSignals) sigdelset(&blocked, signal);
  for (int signal : {SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, signal);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

void stay_on(const std::vector<int> &cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // the device has checked that the set is allowed
}

}  // namespace

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : kFaultSignals) sigaction(signal, &action, &previous[signal]);
  });
}

Worker::Worker(StatusPage &page, uint32_t slot, const std::string &name, const std::vector<int> &cpus)
    : page_(page), index_(slot), slot_(page.slot(slot)), signal_stack_(new std::byte[kSignalStack]) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  keep_fault_signals_only();
  stay_on(cpus);
  stack_t stack{};
  stack.ss_sp = signal_stack_.get();
  stack.ss_size = kSignalStack;
  sigaltstack(&stack, nullptr);
  reset_control_word();
  current = this;
}

Worker::~Worker() {
  current = nullptr;
  stack_t off{};
  off.ss_flags = SS_DISABLE;
  sigaltstack(&off, nullptr);
}

void Worker::reset_control_word() {
#if defined(__x86_64__)
  _mm_setcsr(0x1F80);
#elif defined(__aarch64__)
  uint64_t zero = 0;
  asm volatile("msr fpcr, %0" ::"r"(zero));
#endif
}

void fault_kernel(const void *, uint32_t, uint32_t) {
  static void *forbidden = mmap(nullptr, size_t(sysconf(_SC_PAGESIZE)), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char *>(forbidden) = 1;
}

}  // namespace hg
