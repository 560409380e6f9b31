// Compares every entry of every table of this machine with the plain table over many shapes, one line per entry.
//
//   compare_tables              all tables
//   compare_tables NAME…        those; fails when the machine lacks one
//
// The plain table is compared with itself, so that a sanitizer or memcheck sees it run too. Every array is an allocation
// of its exact size. The exit status is 0 when everything agrees.
#include <cstdio>
#include <memory>
#include <new>

#include "dispatch.h"
#include "self_test.h"
#include "table_comparison.h"

namespace magnitude {
namespace {

struct Delete {
  void operator()(uint8_t* bytes) const { ::operator delete(bytes, std::align_val_t{64}); }
};

// An allocation for each array. One that asks for no alignment begins at an odd address: a mapped tensor may.
class HeapMemory final : public ComparisonMemory {
 public:
  uint8_t* array(int number, size_t bytes, size_t alignment) override {
    const size_t shift = alignment == 1 ? 1 : 0;
    arrays_[number].reset(static_cast<uint8_t*>(::operator new(bytes + shift, std::align_val_t{64})));
    return arrays_[number].get() + shift;
  }

 private:
  std::unique_ptr<uint8_t[], Delete> arrays_[kArrays];
};

// The number of entries that differ, or whose table fails its self-test.
int compare(const Ops& table) {
  const SelfTestResult result = run_self_test(table, kScalarOps);
  std::printf("%-9s %-20s %s\n", table.name, "self-test", description(result).c_str());
  int failures = result.verdict != SelfTestResult::Verdict::kPassed;
  HeapMemory memory;
  for (int i = 0; i < comparison_count(); ++i) {
    const bool holds = comparison_holds(i, table, kScalarOps, Extent::kThorough, memory);
    std::printf("%-9s %-20s %s\n", table.name, comparison_name(i), holds ? "same bits" : "DIFFERS");
    failures += !holds;
  }
  return failures;
}

// Of the tables named, or of all.
int compare_tables(int count, char** names) {
  const Ops* tables[kTablesMax];
  const int tables_count = supported_ops(tables, kTablesMax);
  int failures = 0;
  for (int i = 0; count == 0 && i < tables_count; ++i) failures += compare(*tables[i]);
  for (int i = 0; i < count; ++i) {
    const Ops* table = find_ops(names[i]);
    if (!table) std::printf("%-9s is not offered by this machine\n", names[i]);
    failures += table ? compare(*table) : 1;
  }
  std::printf("%d failures\n", failures);
  return failures;
}

}  // namespace
}  // namespace magnitude

int main(int count, char** arguments) { return magnitude::compare_tables(count - 1, arguments + 1) == 0 ? 0 : 1; }
