// The choice of a table for Python, and for tests the same choice among tables of which some are broken on purpose.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings.h"
#include "dispatch.h"
#include "selection.h"
#include "table_comparison.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude {
namespace {

using Report = std::tuple<std::optional<std::string>, std::vector<std::tuple<std::string, std::string>>>;

Report report(const Selection& selection) {
  std::vector<std::tuple<std::string, std::string>> suspicions;
  for (const Suspicion& suspicion : selection.suspicions) {
    suspicions.emplace_back(suspicion.table->name, description(suspicion.result));
  }
  return {selection.ops ? std::optional<std::string>(selection.ops->name) : std::nullopt, suspicions};
}

Report select(const std::string& forced) {
  nb::gil_scoped_release unlocked;
  return report(select_table(forced.c_str()));
}

void add_with_a_wrong_bit(float* x, const float* y, int E) {
  kScalarOps.add(x, y, E);
  x[E - 1] = -x[E - 1];
}

void matmul_with_a_wrong_bit(const MatmulArgs& args) {
  kScalarOps.matmul[static_cast<int>(TensorType::F32)](args);
  float& last = args.y[(args.M - 1) * args.y_stride + args.n_end - 1];
  uint32_t bits;
  __builtin_memcpy(&bits, &last, sizeof bits);
  bits ^= 1;
  __builtin_memcpy(&last, &bits, sizeof bits);
}

void silu_multiply_with_an_illegal_instruction(const float*, const float*, int, float*) {
#if defined(__x86_64__)
  __asm__ volatile("ud2");
#else
  __builtin_trap();
#endif
}

void matmul_with_a_stray_read(const MatmulArgs& args) {
  const volatile uint8_t* behind = args.weights + args.n_end * args.row_bytes;
  args.y[0] = *behind;
}

void finish_without_an_end(const float*, const float*, float* o, const float*, int, int) {
  for (volatile float* keep = o;;) *keep = 0;
}

// What may be broken in a table, by the name of the comparison that finds it; or that only its name chooses it.
void break_table(Ops* ops, const std::string& entry) {
  const auto matmul = [&](TensorType type) -> auto& { return ops->matmul[static_cast<int>(type)]; };
  if (entry == "add") {
    ops->add = add_with_a_wrong_bit;
  } else if (entry == "matmul F32") {
    matmul(TensorType::F32) = matmul_with_a_wrong_bit;
  } else if (entry == "silu_multiply") {
    ops->silu_multiply = silu_multiply_with_an_illegal_instruction;
  } else if (entry == "matmul Q4_K") {
    matmul(TensorType::Q4_K) = matmul_with_a_stray_read;
  } else if (entry == "matmul Q6_K") {
    matmul(TensorType::Q6_K) = nullptr;
  } else if (entry == "attention_finish") {
    ops->attention_finish = finish_without_an_end;
  } else if (entry == "by name only") {
    ops->by_name_only = true;
  } else {
    throw std::invalid_argument("no fault of this entry is known");
  }
}

// As `select`, untouched by what is known of the real tables, among copies of which each has the faults given for it.
Report select_with_faults(const std::string& forced, const std::map<std::string, std::string>& faults) {
  const Ops* known[kTablesMax];
  const int count = supported_ops(known, kTablesMax);
  std::vector<Ops> copies;
  for (int i = 0; i < count; ++i) {
    copies.push_back(*known[i]);
    const auto fault = faults.find(known[i]->name);
    if (fault != faults.end()) break_table(&copies.back(), fault->second);
  }
  std::vector<const Ops*> tables;
  for (const Ops& copy : copies) tables.push_back(&copy);
  tables.back() = &kScalarOps;   // the oracle, which nothing is held against
  nb::gil_scoped_release unlocked;
  return report(select_tested(tables, forced.c_str(), [](const Ops& table) {
    return run_self_test(table, kScalarOps);
  }));
}

std::vector<std::string> comparison_names() {
  std::vector<std::string> names;
  for (int i = 0; i < comparison_count(); ++i) names.emplace_back(comparison_name(i));
  return names;
}

}  // namespace

void bind_selection(nb::module_& module) {
  module.def("select_table", select, "forced"_a,
             "The table to compute with, or None if the forced one cannot be, and what self-tests found: (table, what).");
  nb::module_ self_test = module.def_submodule("self_test", "The self-test of tables, for tests.");
  self_test.def("comparisons", comparison_names, "Names of what is compared with the plain table, in order.");
  self_test.def("select_table", select_with_faults, "forced"_a, "faults"_a,
                "select_table among copies of which those named have a broken entry.");
}

}  // namespace magnitude
