// Whether a table computes the same bits as another, entry by entry, on small drawn inputs. The start-up self-test and
// the native test program ask the same questions.
//
// Nothing here allocates, locks, or calls the system: a forked child of a process with threads may run it.
#pragma once

#include "ops.h"

namespace magnitude {

// Where the arrays of a comparison lie, such that whatever is read or written behind their ends is noticed.
class ComparisonMemory {
 public:
  // `bytes` bytes aligned to `alignment` (at most 64), as array `number` (below kArrays), whose former bytes are gone.
  virtual uint8_t* array(int number, size_t bytes, size_t alignment) = 0;
  static constexpr int kArrays = 16;

 protected:
  ~ComparisonMemory() = default;
};

// kQuick: a shape or two of each entry, about a millisecond in all. kThorough: many, for tests.
enum class Extent { kQuick, kThorough };

// No array of kQuick is larger.
constexpr size_t kQuickArrayBytesMax = 1 << 20;

// The comparisons, one per entry of the table and type it takes: "matmul Q4_K", "attention_chunk F16", "add".
int comparison_count();
const char* comparison_name(int index);

// Whether every result has the same bits in both tables; a NaN equals any other. A table that lacks the entry differs.
bool comparison_holds(int index, const Ops& table, const Ops& oracle, Extent extent, ComparisonMemory& memory);

}  // namespace magnitude
