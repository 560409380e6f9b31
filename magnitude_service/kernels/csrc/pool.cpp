#include "pool.h"

#include <chrono>

namespace magnitude {
namespace {

constexpr uint64_t kCountShift = 20;
constexpr uint64_t kPhaseShift = 40;
constexpr uint64_t kFieldMask = (uint64_t{1} << 20) - 1;
constexpr std::chrono::microseconds kSpin{20};
constexpr int kPausesPerLook = 16;   // the clock is read once in this many pauses

uint64_t phase_of(uint64_t ticket) { return ticket >> kPhaseShift; }
uint64_t count_of(uint64_t ticket) { return ticket >> kCountShift & kFieldMask; }
uint64_t next_of(uint64_t ticket) { return ticket & kFieldMask; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or kSpin has passed; returns the last answer of ready().
template <class Ready>
bool spin(Ready&& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

Pool::Pool(int threads) : streams_(threads) {
  workers_.reserve(threads > 1 ? threads - 1 : 0);
  for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  phase_began_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_shared(int chunks, Call call, void* context) {
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t phase = phase_of(ticket_.load(std::memory_order_relaxed)) + 1;
  // Sequentially consistent, as is the worker's sleepers_ increment: either it sees this phase, or we see it asleep.
  ticket_.store(phase << kPhaseShift | static_cast<uint64_t>(chunks) << kCountShift);
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    phase_began_.notify_all();
  }
  run_chunks(0);
  const auto ended = [this, chunks] { return done_.load() == chunks; };
  if (spin(ended)) return;
  // A worker was taken away within a chunk. Give this core up too until it is done.
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_ = true;
  phase_ended_.wait(lock, ended);
  caller_sleeps_ = false;
}

// Claims and runs chunks of the current phase until none is left.
void Pool::run_chunks(int thread) {
  while (true) {
    uint64_t ticket = ticket_.load();
    if (next_of(ticket) >= count_of(ticket)) return;   // a look first, or late-comers would count `next` into `count`
    ticket = ticket_.fetch_add(1);
    if (next_of(ticket) >= count_of(ticket)) return;
    const int count = static_cast<int>(count_of(ticket));
    call_(context_, thread, static_cast<int>(next_of(ticket)));
    // After the last increment the caller may begin another phase: only locals may be used from here on.
    if (done_.fetch_add(1) + 1 == count && caller_sleeps_.load()) {
      std::lock_guard<std::mutex> lock(mutex_);
      phase_ended_.notify_all();
    }
  }
}

void Pool::work(int thread) {
  uint64_t seen = 0;
  while (wait_for_phase(seen)) {
    seen = phase_of(ticket_.load());
    run_chunks(thread);
  }
}

// Returns when a phase other than `seen` has begun, or false when the pool is going away.
bool Pool::wait_for_phase(uint64_t seen) {
  const auto began = [this, seen] { return phase_of(ticket_.load()) != seen || stopping_.load(); };
  if (!spin(began)) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    phase_began_.wait(lock, began);
    --sleepers_;
  }
  return !stopping_.load();
}

}  // namespace magnitude
