// Single kernels of a named table, for tests and benchmarks; the service computes through the executor alone.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>

#include "bindings.h"
#include "blocks.h"
#include "dispatch.h"
#include "cache_pages.h"
#include "matmul_phase.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace magnitude {
namespace {

template <class Scalar, int dimensions>
using Array = nb::ndarray<Scalar, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

void check(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

const Ops& table_named(const std::string& name) {
  const Ops* ops = find_ops(name.c_str());
  check(ops != nullptr, "this machine runs no such table");
  return *ops;
}

// 64-byte aligned memory of exactly `size` bytes, so that a sanitizer sees every overrun.
class Aligned {
 public:
  explicit Aligned(size_t size) : bytes_(static_cast<uint8_t*>(::operator new(size, std::align_val_t{64}))) {}
  uint8_t* get() const { return bytes_.get(); }

 private:
  struct Delete {
    void operator()(uint8_t* bytes) const { ::operator delete(bytes, std::align_val_t{64}); }
  };
  std::unique_ptr<uint8_t[], Delete> bytes_;
};

// Rows that a matmul multiplies: as they are, and quantised by a table where their length allows it.
class Activations {
 public:
  Activations(const std::string& table, Array<const float, 2> x)
      : ops(table_named(table)), x(x), quantized(ops.quantized_row_bytes(columns()) * rows()) {
    if (columns() % kBlock == 0) ops.quantize(x.data(), x.shape(1), rows(), columns(), quantized.get());
  }
  int rows() const { return static_cast<int>(x.shape(0)); }
  int columns() const { return static_cast<int>(x.shape(1)); }

  const Ops& ops;
  Array<const float, 2> x;
  Aligned quantized;
};

using Kernel = void (*)(const MatmulArgs&);

template <class Run>
double best_seconds(int repeats, Run&& run) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return best;
}

// y[:, n_begin:n_end] (+)= x · weightsᵀ (+ bias), `repeats` times; returns the seconds of the fastest. One call of the
// kernel, or with a pool its threads' calls for chunks of rows as in a step.
double matmul(const Activations& activations, int type, Array<const uint8_t, 2> weights, Array<float, 2> y,
              std::optional<Array<const float, 1>> bias, bool accumulate, int n_begin, int n_end, int repeats,
              Pool* pool) {
  const BlockShape shape = block_shape(static_cast<TensorType>(type));
  const int K = activations.columns(), N = static_cast<int>(weights.shape(0));
  check(shape.elements > 0 && K % shape.elements == 0, "rows are no whole blocks of this type");
  check(weights.shape(1) >= static_cast<size_t>(K / shape.elements) * shape.bytes, "weight rows are too short");
  check(static_cast<int>(y.shape(0)) == activations.rows() && static_cast<int>(y.shape(1)) == N, "y is not [M, N]");
  check(!bias || static_cast<int>(bias->shape(0)) == N, "bias is not [N]");
  check(0 <= n_begin && n_begin <= n_end && n_end <= N && n_begin % kRowGroup == 0, "the range of rows is wrong");
  const Kernel kernel = activations.ops.matmul[type];
  check(kernel != nullptr, "the table has no kernel for this type");
  MatmulArgs args{};
  args.weights = weights.data();
  args.row_bytes = weights.shape(1);
  args.K = K;
  args.n_begin = n_begin;
  args.n_end = n_end;
  args.M = activations.rows();
  args.x = activations.x.data();
  args.x_stride = activations.x.shape(1);
  args.xq = activations.quantized.get();
  args.y = y.data();
  args.y_stride = N;
  args.bias = bias ? bias->data() : nullptr;
  args.accumulate = accumulate;
  std::vector<Aligned> scratches;
  for (int i = 0; i < (pool ? pool->threads() : 1); ++i) {
    scratches.emplace_back(activations.ops.matmul_scratch_bytes(K));
  }
  args.scratch = scratches[0].get();
  nb::gil_scoped_release unlocked;
  if (!pool) return best_seconds(repeats, [&] { kernel(args); });
  const int rows = chunk_rows(args.row_bytes, args.M);
  return best_seconds(repeats, [&] {
    pool->run_streams((n_end - n_begin + rows - 1) / rows, [&](int thread, int chunk) {
      MatmulArgs part = args;
      part.n_begin = n_begin + chunk * rows;
      part.n_end = std::min(part.n_begin + rows, n_end);
      part.scratch = scratches[thread].get();
      kernel(part);
    });
  });
}

void dequantize(const std::string& table, int type, Array<const uint8_t, 1> row, Array<float, 1> y) {
  const BlockShape shape = block_shape(static_cast<TensorType>(type));
  const int K = static_cast<int>(y.shape(0));
  check(shape.elements > 0 && K % shape.elements == 0, "the row is no whole blocks of this type");
  check(row.shape(0) >= static_cast<size_t>(K / shape.elements) * shape.bytes, "the row is too short");
  table_named(table).dequantize_row[type](row.data(), K, y.data());
}

void rms_norm(const std::string& table, Array<const float, 1> x, Array<const float, 1> w, float epsilon,
              Array<float, 1> y) {
  check(x.shape(0) == w.shape(0) && x.shape(0) == y.shape(0), "lengths differ");
  table_named(table).rms_norm(x.data(), w.data(), epsilon, static_cast<int>(x.shape(0)), y.data());
}

void silu_multiply(const std::string& table, Array<const float, 1> gate, Array<const float, 1> up, Array<float, 1> y) {
  check(gate.shape(0) == up.shape(0) && gate.shape(0) == y.shape(0), "lengths differ");
  table_named(table).silu_multiply(gate.data(), up.data(), static_cast<int>(gate.shape(0)), y.data());
}

void add(const std::string& table, Array<float, 1> x, Array<const float, 1> y) {
  check(x.shape(0) == y.shape(0), "lengths differ");
  table_named(table).add(x.data(), y.data(), static_cast<int>(x.shape(0)));
}

void rope(const std::string& table, Array<float, 1> head, Array<const float, 1> angles, bool halves) {
  const Ops& ops = table_named(table);
  check(angles.shape(0) <= head.shape(0) && angles.shape(0) % 2 == 0, "the table of angles does not fit the head");
  (halves ? ops.rope_halves : ops.rope_pairs)(head.data(), angles.data(), static_cast<int>(angles.shape(0)));
}

CacheType cache_type_of(int number) {
  check(number >= 0 && number < kCacheTypes, "no such cache type");
  return static_cast<CacheType>(number);
}

// Keys and values f32 [positions, D] into chunk pages u8 [kChunkPages, bytes of a page], slot by slot.
void store(const std::string& table, Array<const float, 2> rows, int cache_type, bool keys, Array<uint8_t, 2> pages) {
  const Ops& ops = table_named(table);
  const int positions = static_cast<int>(rows.shape(0)), D = static_cast<int>(rows.shape(1));
  check(positions <= static_cast<int>(pages.shape(0)) * kPageTokens, "too many positions");
  check(pages.shape(1) == page_shape(cache_type_of(cache_type), D).bytes(), "pages have the wrong size");
  const auto put = keys ? ops.store_key : ops.store_value;
  for (int p = 0; p < positions; ++p) {
    put(rows.data() + static_cast<size_t>(p) * D, D, p % kPageTokens, static_cast<CacheType>(cache_type),
        pages.data() + p / kPageTokens * pages.shape(1));
  }
}

// One chunk: m and l f32 [R], o f32 [R, D]; pages behind those given are null.
double attention_chunk(const std::string& table, Array<const float, 2> q, Array<const int32_t, 1> limit,
                       int first_position, Array<const uint8_t, 2> keys, Array<const uint8_t, 2> values,
                       int cache_type, float scale, int32_t window, float softcap, Array<float, 1> m, Array<float, 1> l,
                       Array<float, 2> o) {
  const Ops& ops = table_named(table);
  const int R = static_cast<int>(q.shape(0)), D = static_cast<int>(q.shape(1)), pages = static_cast<int>(keys.shape(0));
  check(limit.shape(0) == q.shape(0) && m.shape(0) == q.shape(0) && l.shape(0) == q.shape(0), "lengths differ");
  check(o.shape(0) == q.shape(0) && o.shape(1) == q.shape(1), "o is not [R, D]");
  check(pages <= kChunkPages && values.shape(0) == keys.shape(0), "too many pages");
  check(keys.shape(1) == page_shape(cache_type_of(cache_type), D).bytes() && values.shape(1) == keys.shape(1),
        "pages have the wrong size");
  check(window >= 1, "a window shows nothing");
  for (int r = 0; r < R; ++r) {
    check(pages == kChunkPages || limit(r) - first_position <= pages * kPageTokens, "a row sees more than the pages");
  }
  const uint8_t *key_pages[kChunkPages] = {}, *value_pages[kChunkPages] = {};
  for (int page = 0; page < pages; ++page) {
    key_pages[page] = keys.data() + page * keys.shape(1);
    value_pages[page] = values.data() + page * values.shape(1);
  }
  const Aligned scratch(ops.attention_scratch_bytes(R, D));
  AttentionArgs args{};
  args.q = q.data();
  args.q_stride = D;
  args.R = R;
  args.D = D;
  args.limit = limit.data();
  args.window = window;
  args.first_position = first_position;
  args.keys = key_pages;
  args.values = value_pages;
  args.cache_type = static_cast<CacheType>(cache_type);
  args.scale = scale;
  args.softcap = softcap;
  args.m = m.data();
  args.l = l.data();
  args.o = o.data();
  args.scratch = scratch.get();
  const auto start = std::chrono::steady_clock::now();
  ops.attention_chunk(args);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Folds m2, l2 [R] and o2 [R, D] into m1, l1, o1.
void attention_fold(const std::string& table, Array<float, 1> m1, Array<float, 1> l1, Array<float, 2> o1,
                    Array<const float, 1> m2, Array<const float, 1> l2, Array<const float, 2> o2) {
  const size_t R = o1.shape(0);
  check(m1.shape(0) == R && l1.shape(0) == R && m2.shape(0) == R && l2.shape(0) == R, "lengths differ");
  check(o2.shape(0) == R && o2.shape(1) == o1.shape(1), "o1 and o2 differ");
  table_named(table).attention_fold(m1.data(), l1.data(), o1.data(), m2.data(), l2.data(), o2.data(),
                                    static_cast<int>(R), static_cast<int>(o1.shape(1)));
}

void attention_finish(const std::string& table, Array<const float, 1> m, Array<const float, 1> l, Array<float, 2> o,
                      std::optional<Array<const float, 1>> sinks) {
  check(m.shape(0) == o.shape(0) && l.shape(0) == o.shape(0), "lengths differ");
  check(!sinks || sinks->shape(0) == o.shape(0), "sinks are not [R]");
  table_named(table).attention_finish(m.data(), l.data(), o.data(), sinks ? sinks->data() : nullptr,
                                      static_cast<int>(o.shape(0)), static_cast<int>(o.shape(1)));
}

std::optional<std::pair<float, float>> softmax_statistics(const std::string& table, Array<const float, 1> x) {
  float max = 0, sum = 0;
  if (!table_named(table).softmax_statistics(x.data(), static_cast<int>(x.shape(0)), &max, &sum)) return std::nullopt;
  return std::make_pair(max, sum);
}

// Reads every byte once on the threads of a pool, as matmul would read weights, and returns the seconds: the limit of a
// matmul with one token.
double read_seconds(Array<const uint8_t, 1> bytes, Pool& pool) {
  const size_t chunk_bytes = chunk_rows(1, 1), size = bytes.shape(0) / 64 * 64;
  check(size / chunk_bytes < Pool::kChunksMax, "too many bytes");
  std::atomic<uint64_t> read{0};   // what was read is used, so that the loop stays
  nb::gil_scoped_release unlocked;
  return best_seconds(1, [&] {
    pool.run_streams(static_cast<int>((size + chunk_bytes - 1) / chunk_bytes), [&](int, int chunk) {
      uint64_t sums[8] = {};
      const size_t begin = chunk * chunk_bytes, end = std::min(begin + chunk_bytes, size);
      for (size_t i = begin; i < end; i += 64) {
        uint64_t words[8];
        __builtin_prefetch(bytes.data() + i + 4096, 0, 2);
        std::memcpy(words, bytes.data() + i, 64);
        for (int j = 0; j < 8; ++j) sums[j] ^= words[j];
      }
      for (uint64_t part : sums) read.fetch_xor(part, std::memory_order_relaxed);
    });
  });
}

std::vector<std::string> supported_tables() {
  const Ops* tables[kTablesMax];
  const int count = supported_ops(tables, kTablesMax);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(tables[i]->name);
  return names;
}

}  // namespace

void bind_ops(nb::module_& module) {
  module.attr("BLOCK") = kBlock;
  module.attr("ACTIVATION_MAX") = kActivationMax;
  module.attr("ROW_GROUP") = kRowGroup;
  module.attr("PAGE_TOKENS") = kPageTokens;
  module.attr("CHUNK_PAGES") = kChunkPages;
  module.def("supported_tables", supported_tables, "Names of the tables that this machine runs, best first.");
  nb::module_ ops = module.def_submodule("ops", "Single kernels of a named table, for tests and benchmarks.");
  nb::class_<Activations>(ops, "Activations")
      .def(nb::init<const std::string&, Array<const float, 2>>(), "table"_a, "x"_a.noconvert());
  nb::class_<Pool>(ops, "Pool").def(nb::init<int>(), "threads"_a);
  ops.def("matmul", matmul, "activations"_a, "type"_a, "weights"_a.noconvert(), "y"_a.noconvert(),
          "bias"_a.noconvert() = nb::none(), "accumulate"_a = false, "n_begin"_a = 0, "n_end"_a, "repeats"_a = 1,
          "pool"_a = nb::none());
  ops.def("dequantize", dequantize, "table"_a, "type"_a, "row"_a.noconvert(), "y"_a.noconvert());
  ops.def("rms_norm", rms_norm, "table"_a, "x"_a.noconvert(), "w"_a.noconvert(), "epsilon"_a, "y"_a.noconvert());
  ops.def("silu_multiply", silu_multiply, "table"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "y"_a.noconvert());
  ops.def("add", add, "table"_a, "x"_a.noconvert(), "y"_a.noconvert());
  ops.def("rope", rope, "table"_a, "head"_a.noconvert(), "angles"_a.noconvert(), "halves"_a);
  ops.def("store", store, "table"_a, "rows"_a.noconvert(), "cache_type"_a, "keys"_a, "pages"_a.noconvert());
  ops.def("attention_chunk", attention_chunk, "table"_a, "q"_a.noconvert(), "limit"_a.noconvert(), "first_position"_a,
          "keys"_a.noconvert(), "values"_a.noconvert(), "cache_type"_a, "scale"_a, "window"_a, "softcap"_a,
          "m"_a.noconvert(), "l"_a.noconvert(), "o"_a.noconvert());
  ops.def("attention_fold", attention_fold, "table"_a, "m1"_a.noconvert(), "l1"_a.noconvert(), "o1"_a.noconvert(),
          "m2"_a.noconvert(), "l2"_a.noconvert(), "o2"_a.noconvert());
  ops.def("attention_finish", attention_finish, "table"_a, "m"_a.noconvert(), "l"_a.noconvert(), "o"_a.noconvert(),
          "sinks"_a.noconvert() = nb::none());
  ops.def("softmax_statistics", softmax_statistics, "table"_a, "x"_a.noconvert());
  ops.def("read_seconds", read_seconds, "bytes"_a.noconvert(), "pool"_a);
}

}  // namespace magnitude
