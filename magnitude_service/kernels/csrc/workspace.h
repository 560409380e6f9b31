// The memory of one executor: float32 rows that instructions exchange, and each thread's own scratch.
//
// Everything is sized when the program is compiled; a step allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "ops.h"

namespace magnitude {

// Uninitialised memory on a cache-line boundary. Untouched pages of it cost nothing.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t count) { allocate(count); }

  void allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes > 0 ? bytes : 64)));
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
  }
  T* get() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t bytes_ = 0;
};

// What the phases of a program ask for; a Workspace is built from their maxima.
struct WorkspaceNeeds {
  int inputs_max = 0;               // K: the widest input of a matmul
  int float_inputs_max = 0;         // K: the widest input of a matmul with float weights
  int private_floats = 0;           // rows * K of the most that a thread prepares for itself
  size_t private_bytes = 0;         // … and their quantised rows
  std::vector<int> angle_counts;    // per rope table: angles of one row
};

class Workspace {
 public:
  // What one thread has for itself.
  struct Thread {
    AlignedArray<float> x;             // rows before they are quantised
    AlignedArray<uint8_t> xq;          // quantised rows
    AlignedArray<uint8_t> matmul;      // Ops::matmul_scratch_bytes
    uint64_t prepared = 0;             // serial number of the phase whose rows are in x and xq
  };

  Workspace(const Ops& ops, int threads, int rows_max, const std::vector<int>& slot_widths, const WorkspaceNeeds&);

  // Slot `index`: [rows_max][slot_stride(index)] float32.
  float* slot(int index) const { return slots_[index].get(); }
  size_t slot_stride(int index) const { return strides_[index]; }

  // Activations of a matmul that all threads share: [rows_max] rows.
  uint8_t* shared_xq() const { return shared_xq_.get(); }
  float* shared_x() const { return shared_x_.get(); }

  // Rope table `index`: [rows_max][2 * angles] float32, cos and sin interleaved.
  float* rope_table(int index) const { return rope_tables_[index].get(); }

  Thread& thread(int index) { return threads_[index]; }
  uint64_t next_serial() { return ++serial_; }
  size_t bytes() const;

 private:
  std::vector<AlignedArray<float>> slots_;
  std::vector<size_t> strides_;
  AlignedArray<uint8_t> shared_xq_;
  AlignedArray<float> shared_x_;
  std::vector<AlignedArray<float>> rope_tables_;
  std::vector<Thread> threads_;
  uint64_t serial_ = 0;
};

}  // namespace magnitude
