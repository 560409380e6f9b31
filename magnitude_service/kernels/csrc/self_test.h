// Tries a table before it computes for anybody: every entry against the plain table, in a child of its own, so that an
// instruction that the machine refuses, a stray access or a wrong bit costs the table and not the process.
#pragma once

#include <string>

#include "ops.h"

namespace magnitude {

struct SelfTestResult {
  enum class Verdict {
    kPassed,
    kDiffers,    // other bits than the oracle
    kDied,       // a signal, or no end within the limit of processor time
    kNoChild,    // the system gives no child or no memory: nothing is known of the table
  };
  Verdict verdict;
  const char* entry;   // the comparison at which it ended; null for kPassed and kNoChild
  int signal;          // for kDied; 0 if the child ended in another way
  int error;           // errno, for kNoChild
};

// About two milliseconds. The process may have other threads: the child runs nothing but kernels and comparisons, on
// memory that was mapped before, whose arrays end at pages without access. It runs no handlers of this process and
// leaves no core file.
SelfTestResult run_self_test(const Ops& table, const Ops& oracle);

// "matmul Q4_K gives other bits than the plain kernels", "add died by signal 4 (Illegal instruction)".
std::string description(const SelfTestResult& result);

}  // namespace magnitude
