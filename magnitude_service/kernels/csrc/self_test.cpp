#include "self_test.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "table_comparison.h"

namespace magnitude {
namespace {

constexpr rlim_t kProcessorSeconds = 2;   // of the child, which needs milliseconds: a kernel that never ends is killed

// What the child tells: shared with it, and read once it has ended.
struct Progress {
  std::atomic<int> entry{0};
  std::atomic<bool> differs{false};
  std::atomic<bool> finished{false};
};

// Mapped memory, unmapped at the end of its scope.
class Mapping {
 public:
  Mapping(size_t bytes, int sharing)
      : bytes_(bytes), address_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0)) {}
  ~Mapping() {
    if (exists()) munmap(address_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool exists() const { return address_ != MAP_FAILED; }
  uint8_t* get() const { return static_cast<uint8_t*>(address_); }

 private:
  size_t bytes_;
  void* address_;
};

// Every array ends at a page without access, as the last tensor of a mapped file may.
class GuardedMemory final : public ComparisonMemory {
 public:
  GuardedMemory()
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        stride_(kQuickArrayBytesMax + page_),
        mapping_(kArrays * stride_, MAP_PRIVATE) {
    guarded_ = mapping_.exists();
    for (int i = 0; guarded_ && i < kArrays; ++i) {
      guarded_ = mprotect(mapping_.get() + i * stride_ + kQuickArrayBytesMax, page_, PROT_NONE) == 0;
    }
  }
  bool exists() const { return guarded_; }

  uint8_t* array(int number, size_t bytes, size_t alignment) override {
    if (bytes > kQuickArrayBytesMax) __builtin_trap();   // our own mistake; kQuick's shapes are constants
    const size_t end = number * stride_ + kQuickArrayBytesMax;
    return mapping_.get() + (end - bytes) / alignment * alignment;
  }

 private:
  size_t page_, stride_;
  Mapping mapping_;
  bool guarded_;
};

// A process as fork makes it, but without the handlers that libraries have registered for fork: they take locks and
// join threads.
pid_t make_child() {
#if defined(__linux__)
  return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
#else
  return fork();
#endif
}

// The child's status; 0 where somebody else has taken it.
int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return 0;
  }
  return status;
}

// Faults end the child at once: no handler of this process sees them, and no core file is written.
void prepare_child() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit processor = {kProcessorSeconds, kProcessorSeconds + 1};
  setrlimit(RLIMIT_CPU, &processor);
#if defined(__linux__)
  prctl(PR_SET_DUMPABLE, 0);
#else
  const rlimit core = {0, 0};
  setrlimit(RLIMIT_CORE, &core);
#endif
}

[[noreturn]] void run_child(const Ops& table, const Ops& oracle, ComparisonMemory& memory, Progress& progress) {
  prepare_child();
  for (int i = 0; i < comparison_count(); ++i) {
    progress.entry = i;
    if (!comparison_holds(i, table, oracle, Extent::kQuick, memory)) {
      progress.differs = true;
      _exit(1);
    }
  }
  progress.finished = true;
  _exit(0);
}

SelfTestResult no_child() { return {SelfTestResult::Verdict::kNoChild, nullptr, 0, errno}; }

}  // namespace

SelfTestResult run_self_test(const Ops& table, const Ops& oracle) {
  const Mapping shared(sizeof(Progress), MAP_SHARED);
  if (!shared.exists()) return no_child();
  GuardedMemory memory;
  if (!memory.exists()) return no_child();
  Progress& progress = *new (shared.get()) Progress;
  // A signal that arrives before the child has dropped our handlers would run them there.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = make_child();
  if (child == 0) run_child(table, oracle, memory, progress);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) {
    errno = error;
    return no_child();
  }
  const int status = wait_for(child);
  if (progress.finished) return {SelfTestResult::Verdict::kPassed, nullptr, 0, 0};
  const char* entry = comparison_name(progress.entry);
  if (progress.differs) return {SelfTestResult::Verdict::kDiffers, entry, 0, 0};
  return {SelfTestResult::Verdict::kDied, entry, WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0};
}

std::string description(const SelfTestResult& result) {
  using Verdict = SelfTestResult::Verdict;
  switch (result.verdict) {
    case Verdict::kPassed: return "every kernel gives the bits of the plain ones";
    case Verdict::kDiffers: return std::string(result.entry) + " gives other bits than the plain kernels";
    case Verdict::kNoChild: return std::string("no child process to try it in: ") + std::strerror(result.error);
    case Verdict::kDied: break;
  }
  if (result.signal == 0) return std::string(result.entry) + " ended the child process";
  return std::string(result.entry) + " died by signal " + std::to_string(result.signal) + " (" +
         strsignal(result.signal) + ")";
}

}  // namespace magnitude
