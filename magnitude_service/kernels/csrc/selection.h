// Which table computes: the best of those that the machine offers that also passes its self-test.
#pragma once

#include <vector>

#include "self_test.h"

namespace magnitude {

// A table whose self-test has something to say.
struct Suspicion {
  const Ops* table;
  SelfTestResult result;
};

struct Selection {
  const Ops* ops;                       // null: the forced one is unknown, or failed
  std::vector<Suspicion> suspicions;    // of those that were tried, in their order
};

// Takes the first of the tables (best first, the plain one last) that passes, of those that need no name, or tries the
// named one alone. A table that
// could not be tried for want of a child is taken, and is a suspicion all the same. The plain table is the oracle and
// passes.
Selection select_tested(const std::vector<const Ops*>& tables, const char* forced_name,
                        SelfTestResult (*test)(const Ops&));

// The same of the tables that this machine offers. Each is tested once per process, when it is first considered.
Selection select_table(const char* forced_name);

}  // namespace magnitude
