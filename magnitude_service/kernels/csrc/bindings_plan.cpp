// Plans for Python, and the sampler alone.
#include "plan.h"

#include <cstddef>
#include <cstring>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude {

void check(bool holds, const std::string& message) {
  if (holds) return;
  PyErr_SetString(PyExc_AssertionError, message.c_str());
  throw nb::python_error();
}

PlanLists::PlanLists(Array1<const int32_t> window, Array1<const int32_t> bias_ids, Floats bias_values,
                     Array2<const uint32_t> masks)
    : window(window), bias_ids(bias_ids), bias_values(bias_values), masks(masks) {
  check(bias_ids.size() == bias_values.size(), "bias ids and values differ in length");
  check(masks.shape(0) <= INT32_MAX && masks.shape(1) <= INT32_MAX, "there are too many masks");
  lists = {window.data(),      count_of(window), bias_ids.data(), bias_values.data(),
           count_of(bias_ids), masks.data(),     static_cast<int>(masks.shape(0)),
           static_cast<int>(masks.shape(1))};
}

std::vector<SamplerRow> sampler_rows(const Array1<const uint8_t>& records, size_t count) {
  check(records.size() == count * sizeof(SamplerRow), "samplers and output rows differ in number");
  std::vector<SamplerRow> rows(count);
  if (count > 0) std::memcpy(rows.data(), records.data(), records.size());
  return rows;
}

Plan::Plan(Array1<const int32_t> tokens, Array1<const int32_t> positions, Array1<const int32_t> row_begin,
           Array2<const int32_t> page_tables, Array1<const int32_t> output_rows,
           const Array1<const uint8_t>& samplers, const PlanLists& lists)
    : tokens(tokens), positions(positions), row_begin(row_begin), page_tables(page_tables), output_rows(output_rows),
      samplers(sampler_rows(samplers, output_rows.size())), lists(lists) {
  check(positions.size() == tokens.size(), "positions and tokens differ in length");
  check(row_begin.size() >= 1 && page_tables.shape(0) == row_begin.size() - 1,
        "page tables and sequences differ in number");
  check(page_tables.shape(1) <= INT32_MAX, "a page table is too long");
  arrays.T = count_of(tokens);
  arrays.S = count_of(row_begin) - 1;
  arrays.R = count_of(output_rows);
  arrays.tokens = tokens.data();
  arrays.positions = positions.data();
  arrays.row_begin = row_begin.data();
  arrays.page_tables = page_tables.data();
  arrays.pages_per_sequence = static_cast<int>(page_tables.shape(1));
  arrays.output_rows = output_rows.data();
  arrays.samplers = this->samplers.data();
  arrays.lists = lists.lists;
}

namespace {

// Chooses from rows of logits alone, as a step does.
void sample_rows(Array2<const float> logits, const Array1<const uint8_t>& samplers, const PlanLists& lists,
                 Array1<int32_t> tokens, Array1<float> logprobs, Array1<uint8_t> statuses, Array2<int32_t> top_ids,
                 Array2<float> top_logprobs) {
  const size_t R = logits.shape(0), V = logits.shape(1), top = top_ids.shape(1);
  check(R <= INT32_MAX && V >= 1 && V <= INT32_MAX, "logits are out of range");
  check(tokens.size() == R && logprobs.size() == R && statuses.size() == R && top_ids.shape(0) == R &&
            top_logprobs.shape(0) == R && top_logprobs.shape(1) == top, "the outputs have another length");
  const std::vector<SamplerRow> rows = sampler_rows(samplers, R);
  const std::string fault = find_sampler_fault(rows.data(), static_cast<int>(R), lists.lists, static_cast<int>(V));
  check(fault.empty(), fault);
  const Ops& ops = *select_ops(nullptr);
  Sampler sampler(static_cast<int>(V));
  for (size_t r = 0; r < R; ++r) {
    check(rows[r].top_logprobs <= top, "a row wants more log-probabilities than there is room for");
    sampler.choose(ops, logits.data() + r * V, rows[r], lists.lists,
                   {tokens.data() + r, logprobs.data() + r, statuses.data() + r, top_ids.data() + r * top,
                    top_logprobs.data() + r * top});
  }
}

nb::dict sampler_row_offsets() {
  nb::dict offsets;
  const auto add = [&offsets](const char* field, size_t offset) { offsets[field] = offset; };
  add("seed", offsetof(SamplerRow, seed));
  add("draw", offsetof(SamplerRow, draw));
  add("temperature", offsetof(SamplerRow, temperature));
  add("top_p", offsetof(SamplerRow, top_p));
  add("min_p", offsetof(SamplerRow, min_p));
  add("typical_p", offsetof(SamplerRow, typical_p));
  add("repetition_penalty", offsetof(SamplerRow, repetition_penalty));
  add("presence_penalty", offsetof(SamplerRow, presence_penalty));
  add("frequency_penalty", offsetof(SamplerRow, frequency_penalty));
  add("top_k", offsetof(SamplerRow, top_k));
  add("top_logprobs", offsetof(SamplerRow, top_logprobs));
  add("target", offsetof(SamplerRow, target));
  add("flags", offsetof(SamplerRow, flags));
  add("window_begin", offsetof(SamplerRow, window_begin));
  add("window_end", offsetof(SamplerRow, window_end));
  add("bias_begin", offsetof(SamplerRow, bias_begin));
  add("bias_end", offsetof(SamplerRow, bias_end));
  add("mask", offsetof(SamplerRow, mask));
  add("itemsize", sizeof(SamplerRow));
  return offsets;
}

}  // namespace

void bind_plan(nb::module_& module) {
  nb::class_<PlanLists>(module, "PlanLists")
      .def(nb::init<Array1<const int32_t>, Array1<const int32_t>, Floats, Array2<const uint32_t>>(),
           "window"_a.noconvert(), "bias_ids"_a.noconvert(), "bias_values"_a.noconvert(), "masks"_a.noconvert());
  nb::class_<Plan>(module, "Plan")
      .def(nb::init<Array1<const int32_t>, Array1<const int32_t>, Array1<const int32_t>, Array2<const int32_t>,
                    Array1<const int32_t>, const Array1<const uint8_t>&, const PlanLists&>(),
           "tokens"_a.noconvert(), "positions"_a.noconvert(), "row_begin"_a.noconvert(), "page_tables"_a.noconvert(),
           "output_rows"_a.noconvert(), "samplers"_a.noconvert(), "lists"_a,
           "The arrays of a StepPlan, `samplers` as bytes. Keeps them alive.");
  module.def("sample_rows", sample_rows, "logits"_a.noconvert(), "samplers"_a.noconvert(), "lists"_a,
             "tokens"_a.noconvert(), "logprobs"_a.noconvert(), "statuses"_a.noconvert(), "top_ids"_a.noconvert(),
             "top_logprobs"_a.noconvert(), "Chooses one token per row of logits, as a step does.");
  module.def("sampler_row_offsets", sampler_row_offsets, "Byte offset of each field of SamplerRow, and its itemsize.");
  module.def("uniform_draw", uniform_draw, "seed"_a, "draw"_a, "The random number in [0, 1) of a row.");
  module.attr("PAGE_TOKENS") = kPageTokens;
  module.attr("TOP_LOGPROBS_MAX") = kTopLogprobsMax;
}

}  // namespace magnitude
