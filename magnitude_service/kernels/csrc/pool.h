// The threads that run a step: the caller and threads-1 workers share phases of many small chunks.
//
// A phase is a task over chunks 0 … count-1. Threads claim chunks from one counter, so a thread that the system takes
// away costs its current chunk and no more. Between phases a worker spins for about 20 µs, then sleeps: within a step
// phases follow each other much faster than that, between steps nobody burns a core.
//
// The caller never waits for a worker that has claimed nothing: a phase is over when its last chunk is done, whether
// or not the others have noticed that it began.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace magnitude {

class Pool {
 public:
  static constexpr int kChunksMax = 1 << 19;

  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Ends the workers' sleep, so that they are there when the first phase of a step begins.
  void wake() {
    if (!workers_.empty()) run_shared(0, nullptr, nullptr);
  }

  // Calls task(thread, chunk) once for every chunk in [0, chunks) and returns when all calls have returned. `thread`
  // is below threads(); no two calls run at once with the same one. chunks may not exceed kChunksMax. What a task
  // writes is seen by every task of later phases. One run at a time; a task may not call run.
  template <class Task>
  void run(int chunks, Task&& task) {
    if (chunks <= 0) return;
    if (chunks == 1 || workers_.empty()) {
      for (int chunk = 0; chunk < chunks; ++chunk) task(0, chunk);
      return;
    }
    run_shared(chunks, [](void* context, int thread, int chunk) {
      (*static_cast<std::remove_reference_t<Task>*>(context))(thread, chunk);
    }, const_cast<void*>(static_cast<const void*>(&task)));
  }

  // As run, but a thread takes adjacent chunks one after the other as long as it can: chunks are cut into one stream
  // per thread, and who has finished a stream helps with the next. For chunks that read memory in order.
  template <class Task>
  void run_streams(int chunks, Task&& task) {
    const int streams = threads();
    const auto end_of = [&](int stream) { return static_cast<int>(int64_t{chunks} * (stream + 1) / streams); };
    for (int stream = 0; stream < streams; ++stream) {
      streams_[stream].next.store(stream == 0 ? 0 : end_of(stream - 1), std::memory_order_relaxed);
    }
    run(streams, [&](int thread, int first) {
      for (int i = 0; i < streams; ++i) {
        const int stream = (first + i) % streams, end = end_of(stream);
        for (int chunk; (chunk = streams_[stream].next.fetch_add(1, std::memory_order_relaxed)) < end;) {
          task(thread, chunk);
        }
      }
    });
  }

 private:
  struct alignas(64) Stream {
    std::atomic<int> next{0};
  };
  using Call = void (*)(void* context, int thread, int chunk);

  void run_shared(int chunks, Call call, void* context);
  void work(int thread);
  void run_chunks(int thread);
  bool wait_for_phase(uint64_t seen);

  // The phase's number, its count of chunks and the next one to claim in one word: whoever increments `next` learns
  // in the same instant which phase the chunk belongs to. call_ and context_ are written before it and are read only
  // by a thread that has claimed a chunk, whose phase therefore cannot end meanwhile.
  //   bits 63…40 phase, 39…20 count, 19…0 next
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};   // chunks of the phase that have returned
  Call call_ = nullptr;
  void* context_ = nullptr;

  std::vector<Stream> streams_;

  // Guards nothing but the two sleeps below.
  alignas(64) std::mutex mutex_;
  std::condition_variable phase_began_;
  std::condition_variable phase_ended_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace magnitude
