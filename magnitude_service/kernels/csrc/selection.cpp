#include "selection.h"

#include <cstring>
#include <map>
#include <mutex>

#include "dispatch.h"

namespace magnitude {
namespace {

// Guards `known` and lets one self-test run at a time.
std::mutex mutex;

SelfTestResult tested_once(const Ops& table) {
  static std::map<const Ops*, SelfTestResult> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(&table);
  if (found != known.end()) return found->second;
  return known[&table] = run_self_test(table, kScalarOps);
}

bool is_wanted(const Ops& table, const char* forced_name) {
  if (!forced_name || !*forced_name) return !table.by_name_only;
  return std::strcmp(table.name, forced_name) == 0;
}

}  // namespace

Selection select_tested(const std::vector<const Ops*>& tables, const char* forced_name,
                        SelfTestResult (*test)(const Ops&)) {
  using Verdict = SelfTestResult::Verdict;
  Selection selection{nullptr, {}};
  for (const Ops* table : tables) {
    if (!is_wanted(*table, forced_name)) continue;
    const bool plain = table == &kScalarOps;
    const SelfTestResult result = plain ? SelfTestResult{Verdict::kPassed, nullptr, 0, 0} : test(*table);
    if (result.verdict != Verdict::kPassed) selection.suspicions.push_back({table, result});
    if (result.verdict == Verdict::kPassed || result.verdict == Verdict::kNoChild) {
      selection.ops = table;
      break;
    }
  }
  return selection;
}

Selection select_table(const char* forced_name) {
  const Ops* tables[kTablesMax];
  const int count = supported_ops(tables, kTablesMax);
  return select_tested({tables, tables + count}, forced_name, tested_once);
}

const Ops* select_ops(const char* forced_name) { return select_table(forced_name).ops; }

}  // namespace magnitude
