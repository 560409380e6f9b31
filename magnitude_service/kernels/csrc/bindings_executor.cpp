// Executor for Python. Every index and size is checked here: what a wrong one would do is our own mistake, and an
// AssertionError.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <optional>

#include "bindings.h"
#include "executor.h"
#include "plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude {
namespace {

class ExecutorBinding {
 public:
  ExecutorBinding(const std::string& isa, int threads, const std::vector<int>& slot_widths, int rows_max,
                  int sequences_max, int output_rows_max, int vocabulary, int context_length, Array1<uint8_t> cache,
                  int cache_type, int pages, int layers, int heads, int key_value_heads, int head_size) {
    ExecutorSettings settings;
    settings.ops = select_ops(isa.c_str());
    check(settings.ops != nullptr, "this machine does not run " + isa);
    check(threads >= 1 && rows_max >= 1 && sequences_max >= 1 && output_rows_max >= 1, "a limit is below 1");
    check(vocabulary >= 1 && context_length >= 1 && pages >= 0, "vocabulary, context or pages are out of range");
    check(layers >= 1 && key_value_heads >= 1 && head_size >= 1 && heads % key_value_heads == 0,
          "the cache's shape is out of range");
    check(cache_type >= 0 && cache_type < kCacheTypes, "no such cache type");
    for (int width : slot_widths) check(width >= 1, "a buffer has no width");
    settings.threads = threads;
    settings.limits = {rows_max, sequences_max, output_rows_max, vocabulary, context_length, pages};
    settings.pages = {cache.data(), pages, layers, key_value_heads, head_size, static_cast<CacheType>(cache_type)};
    settings.heads = heads;
    settings.slot_widths = slot_widths;
    check(cache.nbytes() >= pages * settings.pages.page_bytes(), "the pool is smaller than its pages");
    cache_ = cache;
    executor_ = std::make_unique<Executor>(settings);
  }

  Weights weights(Array1<const uint8_t> data, int type, int rows, int columns) {
    check(rows >= 1 && columns >= 1, "a matrix is empty");
    check(type >= 0 && type < kTensorTypeMax && ops().matmul[type] != nullptr, "no kernel for this tensor type");
    check(data.nbytes() % rows == 0, "a matrix has no whole rows");
    matrices_.push_back(data);
    return {data.data(), static_cast<TensorType>(type), rows, columns, data.nbytes() / rows};
  }

  // Reads the first `rows` rows of a matrix only.
  static Weights first_rows(const Weights& weights, int rows) {
    check(rows >= 1 && rows <= weights.rows, "a matrix has fewer rows");
    Weights first = weights;
    first.rows = rows;
    return first;
  }

  RowSource plain_rows(int input) const { return {RowSource::Kind::kPlain, input, input, nullptr, 0}; }
  RowSource norm_rows(int input, Floats weight, float epsilon) {
    check_slot(input, weight.size());
    return {RowSource::Kind::kNorm, input, input, keep(weight), epsilon};
  }
  RowSource gated_rows(int gate, int up) const { return {RowSource::Kind::kGated, gate, up, nullptr, 0}; }

  Matmul matmul(const Weights& weights, std::optional<Floats> bias, int output, bool accumulate) {
    check_slot(output, weights.rows);
    check(!bias || bias->size() == static_cast<size_t>(weights.rows), "a bias has another length than its matrix");
    return {weights, bias ? keep(*bias) : nullptr, output, accumulate};
  }

  int rope_table(int dimensions, double base, double scale, std::optional<Floats> factors) {
    check(dimensions >= 2 && dimensions % 2 == 0 && base > 0 && scale > 0, "a rotation is out of range");
    check(!factors || factors->size() == static_cast<size_t>(dimensions / 2), "frequency factors have another length");
    return executor_->add_rope_table({dimensions, base, scale, factors ? factors->data() : nullptr});
  }

  Rotation rotation(int table, bool halves) const {
    const std::vector<RopeTable>& tables = executor_->rope_tables();
    check(table >= 0 && table < static_cast<int>(tables.size()), "no such rope table");
    const int dimensions = 2 * tables[table].angles();
    check(dimensions <= executor_->settings().pages.head_size, "a rotation is wider than a head");
    return {dimensions, table, halves ? RopeStyle::kHalves : RopeStyle::kPairs};
  }

  void add_embed(int layer, const Weights& embedding, int output) {
    check_slot(output, embedding.columns);
    check(embedding.rows >= executor_->settings().limits.vocabulary, "the embedding is smaller than the vocabulary");
    executor_->add(layer, std::make_unique<EmbedPhase>(embedding, output));
  }

  void add_norm(int layer, Floats weight, float epsilon, int input, int output) {
    check_slot(input, weight.size());
    check_slot(output, weight.size());
    executor_->add(layer, std::make_unique<NormPhase>(keep(weight), count_of(weight), epsilon, input, output));
  }

  void add_gated_activation(int layer, int width, int gate, int up, int output) {
    for (int slot : {gate, up, output}) check_slot(slot, width);
    executor_->add(layer, std::make_unique<GatedActivationPhase>(width, gate, up, output));
  }

  void add_add(int layer, int width, int a, int b, int output) {
    for (int slot : {a, b, output}) check_slot(slot, width);
    check(output != b || a == b, "an addition overwrites what it adds");
    executor_->add(layer, std::make_unique<AddPhase>(width, a, b, output));
  }

  void add_matmuls(int layer, const RowSource& source, const std::vector<Matmul>& matmuls) {
    check(!matmuls.empty(), "a phase has no matmul");
    for (const Matmul& matmul : matmuls) {
      check_source(source, matmul.weights, matmuls.front().weights);
      check(matmul.output != source.input && matmul.output != source.up, "a matmul overwrites its input");
    }
    executor_->add_matmuls(layer, source, matmuls);
  }

  void set_logits(const RowSource& source, const Weights& weights, std::optional<Floats> bias) {
    check_source(source, weights, weights);
    check(weights.rows == executor_->settings().limits.vocabulary, "logits are not as many as the vocabulary");
    check(!bias || bias->size() >= static_cast<size_t>(weights.rows), "a bias is shorter than the vocabulary");
    executor_->set_logits(source, weights, bias ? keep(*bias) : nullptr);
    has_logits_ = true;
  }

  void add_attention(int layer, int cache_layer, float scale, int window, float softcap, std::optional<Floats> sinks,
                     int q, int k, int v, int output, Rotation q_rotation, Rotation k_rotation) {
    const ExecutorSettings& settings = executor_->settings();
    check(cache_layer >= 0 && cache_layer < settings.pages.layers, "no such layer in the cache");
    for (int slot : {q, output}) check_slot(slot, settings.heads * settings.pages.head_size);
    for (int slot : {k, v}) check_slot(slot, settings.pages.key_value_heads * settings.pages.head_size);
    check(output != q && output != k && output != v, "attention overwrites its inputs");
    check(window >= 1 && softcap >= 0, "a window or a soft cap is out of range");
    check(!sinks || sinks->size() == static_cast<size_t>(settings.heads), "sinks are not as many as the heads");
    executor_->add(layer, std::make_unique<AttentionPhase>(AttentionSettings{
                              settings.pages, cache_layer, executor_->attention_shape(), scale, window, softcap,
                              sinks ? keep(*sinks) : nullptr, q, k, v, output, q_rotation, k_rotation}));
  }

  void finish() {
    check(has_logits_ && !finished_, "a program ends with logits, once");
    executor_->finish();
    finished_ = true;
  }

  bool step(const Plan& plan, Array1<int32_t> tokens, Array1<float> logprobs, Array1<uint8_t> statuses,
            Array2<int32_t> top_ids, Array2<float> top_logprobs) {
    const size_t R = plan.arrays.R;
    check(plan.arrays.samplers != nullptr || R == 0, "a step has no samplers");
    check(tokens.size() == R && logprobs.size() == R && statuses.size() == R && top_ids.shape(0) == R &&
              top_logprobs.shape(0) == R && top_ids.shape(1) == top_logprobs.shape(1),
          "the outputs have another length than output_rows");
    for (const SamplerRow& row : plan.samplers) {
      check(row.top_logprobs <= top_ids.shape(1), "a row wants more log-probabilities than there is room for");
    }
    const StepOutputs outputs{tokens.data(),  logprobs.data(),     statuses.data(),
                              top_ids.data(), top_logprobs.data(), static_cast<int>(top_ids.shape(1))};
    return run(plan, [&] { return executor_->step(plan.arrays, outputs); });
  }

  bool logits(const Plan& plan, Array2<float> logits) {
    check(logits.shape(0) == static_cast<size_t>(plan.arrays.R) &&
              logits.shape(1) == static_cast<size_t>(executor_->settings().limits.vocabulary),
          "the output is not [R, V]");
    return run(plan, [&] { return executor_->logits(plan.arrays, logits.data()); });
  }

  void abort() { executor_->abort(); }
  size_t workspace_bytes() const { return executor_->workspace_bytes(); }
  std::string isa() const { return ops().name; }

 private:
  const Ops& ops() const { return *executor_->settings().ops; }

  const float* keep(const Floats& floats) {
    vectors_.push_back(floats);
    return floats.data();
  }

  // Checks a plan, then runs a step on it without the interpreter lock.
  template <class Run>
  bool run(const Plan& plan, Run&& run_step) {
    check(finished_, "the program is not complete");
    const std::string fault = executor_->find_fault(plan.arrays);
    check(fault.empty(), fault);
    check(!busy_.exchange(true), "two steps run at once");
    nb::gil_scoped_release unlocked;
    const bool completed = run_step();
    busy_ = false;
    return completed;
  }

  void check_slot(int slot, size_t width) const {
    const std::vector<int>& widths = executor_->settings().slot_widths;
    check(slot >= 0 && slot < static_cast<int>(widths.size()), "no such buffer");
    check(width <= static_cast<size_t>(widths[slot]), "a buffer is too narrow");
  }
  void check_source(const RowSource& source, const Weights& weights, const Weights& first) const {
    check_slot(source.input, weights.columns);
    check_slot(source.up, weights.columns);
    check(weights.columns == first.columns, "matmuls of one phase have different inputs");
  }

  // What the executor points into stays alive as long as it does.
  Array1<uint8_t> cache_;
  std::vector<Array1<const uint8_t>> matrices_;
  std::vector<Floats> vectors_;
  std::unique_ptr<Executor> executor_;
  bool has_logits_ = false;
  bool finished_ = false;
  std::atomic<bool> busy_{false};
};

// The methods that build a program, in the order of their use.
template <class Class>
void bind_building(Class& executor) {
  executor
      .def("weights", &ExecutorBinding::weights, "data"_a.noconvert(), "type"_a, "rows"_a, "columns"_a,
           "A matrix over mapped bytes.")
      .def_static("first_rows", &ExecutorBinding::first_rows, "weights"_a, "rows"_a)
      .def("plain_rows", &ExecutorBinding::plain_rows, "input"_a)
      .def("norm_rows", &ExecutorBinding::norm_rows, "input"_a, "weight"_a.noconvert(), "epsilon"_a)
      .def("gated_rows", &ExecutorBinding::gated_rows, "gate"_a, "up"_a)
      .def("matmul", &ExecutorBinding::matmul, "weights"_a, "bias"_a.noconvert().none(), "output"_a, "accumulate"_a)
      .def("rope_table", &ExecutorBinding::rope_table, "dimensions"_a, "base"_a, "scale"_a,
           "factors"_a.noconvert().none())
      .def("rotation", &ExecutorBinding::rotation, "table"_a, "halves"_a)
      .def("add_embed", &ExecutorBinding::add_embed, "layer"_a, "embedding"_a, "output"_a)
      .def("add_norm", &ExecutorBinding::add_norm, "layer"_a, "weight"_a.noconvert(), "epsilon"_a, "input"_a,
           "output"_a)
      .def("add_gated_activation", &ExecutorBinding::add_gated_activation, "layer"_a, "width"_a, "gate"_a, "up"_a,
           "output"_a)
      .def("add_add", &ExecutorBinding::add_add, "layer"_a, "width"_a, "a"_a, "b"_a, "output"_a)
      .def("add_matmuls", &ExecutorBinding::add_matmuls, "layer"_a, "source"_a, "matmuls"_a)
      .def("add_attention", &ExecutorBinding::add_attention, "layer"_a, "cache_layer"_a, "scale"_a, "window"_a, "softcap"_a,
           "sinks"_a.noconvert().none(), "q"_a, "k"_a, "v"_a, "output"_a, "q_rotation"_a, "k_rotation"_a)
      .def("set_logits", &ExecutorBinding::set_logits, "source"_a, "weights"_a, "bias"_a.noconvert().none())
      .def("finish", &ExecutorBinding::finish);
}

}  // namespace

void bind_executor(nb::module_& module) {
  nb::class_<Weights>(module, "Weights");
  nb::class_<RowSource>(module, "RowSource");
  nb::class_<Matmul>(module, "Matmul");
  nb::class_<Rotation>(module, "Rotation").def(nb::init<>(), "No rotation.");
  nb::class_<ExecutorBinding> executor(module, "Executor");
  executor.def(nb::init<const std::string&, int, const std::vector<int>&, int, int, int, int, int, Array1<uint8_t>,
                        int, int, int, int, int, int>(),
               "isa"_a, "threads"_a, "slot_widths"_a, "rows_max"_a, "sequences_max"_a, "output_rows_max"_a,
               "vocabulary"_a, "context_length"_a, "cache"_a.noconvert(), "cache_type"_a, "pages"_a, "layers"_a,
               "heads"_a, "key_value_heads"_a, "head_size"_a);
  bind_building(executor);
  executor
      .def("step", &ExecutorBinding::step, "plan"_a, "tokens"_a.noconvert(), "logprobs"_a.noconvert(),
           "statuses"_a.noconvert(), "top_ids"_a.noconvert(), "top_logprobs"_a.noconvert(),
           "Runs a step and chooses tokens; False when it was aborted.")
      .def("logits", &ExecutorBinding::logits, "plan"_a, "logits"_a.noconvert(),
           "Runs a step and gives its logits; False when it was aborted.")
      .def("abort", &ExecutorBinding::abort)
      .def_prop_ro("workspace_bytes", &ExecutorBinding::workspace_bytes)
      .def_prop_ro("isa", &ExecutorBinding::isa);
}

}  // namespace magnitude
