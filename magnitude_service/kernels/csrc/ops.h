// The table of kernels: one per instruction set, and the contract of each entry.
//
// Kernels know no threads, no allocation, no globals. Letters: M rows (tokens), K inputs, N outputs, D head size,
// G query heads that share a key/value head.
//
// The arithmetic is canonical: every entry fixes its order of accumulation, so a result has the same bits on every
// instruction set, for every M, and however the work is split. No compiler may contract a*b+c on its own
// (-ffp-contract=off); where a fused multiply-add is meant, the contract says fma.
#pragma once

#include <cstddef>
#include <cstdint>

namespace magnitude {

constexpr int kBlock = 32;        // inputs that share one activation scale
constexpr int kPageTokens = 32;   // tokens of a key/value page (PAGE_TOKENS in engine/batch.py)
constexpr int kChunkPages = 8;    // pages that one attention chunk covers: 256 positions share one softmax maximum
constexpr int kRowGroup = 16;     // work is split between multiples of this many output rows

// Identifiers of GGUF's tensor types.
enum class TensorType : uint32_t {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30,
};
constexpr int kTensorTypeMax = 31;

// Elements of the key/value cache; their bytes are drawn in cache_pages.h.
enum class CacheType : uint32_t { F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_0 = 4 };
constexpr int kCacheTypes = 5;

// y[m][n] = sum_k x[m][k] * w[n][k]  (+ bias[n])  (+ y[m][n] when accumulate)  for n in [n_begin, n_end).
//
// Quantised weights: activations are 16-bit integers q with one scale per 32 inputs (see quantize). A weight block is
// codes u with an offset o, a scale dw and, for types with a minimum, a minimum mw: w = dw*(u - o) - mw (mw as added
// or subtracted by the type). K-quant sub-blocks count as blocks, dw = d*sc and mw = dmin*m rounded to float32 once.
// Per block b of 32 (16 for Q6_K, whose two halves share the activation scale dx):
//   i_b = sum (u - o) * q             exact in int32
//   acc = fma(float(i_b), dw * dx, acc)                b ascending
//   acc = fma(-mw, float(sum q) * dx, acc)             where the type has a minimum, right after (Q4_1, Q5_1: +mw)
// Float weights (F32, F16, BF16): 16 accumulators, lane k % 16, acc[l] = fma(w, x, acc[l]), k ascending; the lanes are
// then added as a binary tree: l with l+8, l+4, l+2, l+1. K may be any number; a lane without an input keeps its sum.
// Last: t = acc + bias; y = accumulate ? y + t : t.
// Source: the block layouts of ggml-common.h's types as documented by the GGUF format; integers in two planes are ours.
struct MatmulArgs {
  const uint8_t* weights;   // row 0; a row is row_bytes long; no alignment is promised; nothing is read beyond row N-1
  size_t row_bytes;
  int K;                    // a multiple of the type's block
  int n_begin, n_end;       // n_begin is a multiple of kRowGroup
  int M;
  const float* x;           // [M][x_stride], read by float weights only
  size_t x_stride;
  const uint8_t* xq;        // [M] rows of quantized_row_bytes(K), 64-byte aligned; read by quantised weights only
  float* y;                 // [M][y_stride]; may not overlap x or xq
  size_t y_stride;
  const float* bias;        // [N] or null
  bool accumulate;
  void* scratch;            // matmul_scratch_bytes(K), 64-byte aligned, one per thread
};

// Attention of R query rows that share one key/value head over one chunk (kChunkPages pages) of one sequence.
// Row r sees positions [max(0, limit[r] - window), limit[r]); positions of this chunk are first_position … + 255.
//   s_p = scale * sum_d q[d]*k_p[d]       fma, d ascending; k_p[d] is the exact value of what the page holds
//   s_p = softcap - 2*softcap / (1 + exp(s_p * (2/softcap)))          where softcap is not 0: softcap * tanh(s_p/softcap)
//   m = max s_p, a NaN ignored, -0 as +0;  e_p = exp(s_p - m);  l = sum e_p  (16 lanes p % 16, then matmul's tree)
//   o[d] = sum_p e_p * v_p[d]             fma, p ascending
// A row that sees nothing of the chunk gets m = -inf, l = 0, o = 0. Slots that no row sees may hold anything, and pages
// that no row sees may be null. exp is the function of exponential.h.
struct AttentionArgs {
  const float* q;                 // [R][q_stride], D used
  size_t q_stride;
  int R, D;
  const int32_t* limit;           // [R]
  int32_t window;                 // at least 1; INT32_MAX: everything up to the limit
  int first_position;
  const uint8_t* const* keys;     // kChunkPages pointers: this head's key pages
  const uint8_t* const* values;   // kChunkPages pointers: this head's value pages
  CacheType cache_type;
  float scale;
  float softcap;                  // 0: none
  float* m;                       // [R]
  float* l;                       // [R]
  float* o;                       // [R][D]
  void* scratch;                  // attention_scratch_bytes(R, D), 64-byte aligned
};

struct Ops {
  const char* name;               // "scalar", "avx2", "avx_vnni", "avx512", "amx", "neon", "neon_i8mm"
  bool by_name_only;              // never the automatic choice: not known to be faster than one that is

  // Rows of activations to 16-bit integers: per 32 inputs amax = max|x|, dx = amax / 32512, q = x * (32512 / amax)
  // rounded to nearest even (all zero where 32512 / amax is infinite), with the sums of q that minima and offsets need.
  // The layout is the table's own. A NaN or infinity in x makes the block's scale NaN, so that it is seen in the output.
  size_t (*quantized_row_bytes)(int K);
  void (*quantize)(const float* x, size_t x_stride, int M, int K, uint8_t* xq);

  size_t (*matmul_scratch_bytes)(int K);
  void (*matmul[kTensorTypeMax])(const MatmulArgs&);   // null: the type is not built

  // y[k] = value of row `row` (dequantised, float32). K a multiple of the block.
  void (*dequantize_row[kTensorTypeMax])(const uint8_t* row, int K, float* y);

  // y = (x * (1 / sqrt(mean(x^2) + epsilon))) * w; the sum of squares in 16 lanes by fma, then the tree. y may be x.
  void (*rms_norm)(const float* x, const float* w, float epsilon, int E, float* y);

  // y = (gate / (1 + exp(-gate))) * up. y may be gate.
  void (*silu_multiply)(const float* gate, const float* up, int F, float* y);

  // x += y.
  void (*add)(float* x, const float* y, int E);

  // Rotates pairs of one head in place; table holds cos, sin interleaved for dimensions/2 angles. Not fused:
  // (a*c - b*s, a*s + b*c), two multiplications and one addition each.
  void (*rope_pairs)(float* head, const float* table, int dimensions);    // (2i, 2i+1)
  void (*rope_halves)(float* head, const float* table, int dimensions);   // (i, i + dimensions/2)

  // One position of one head into its pages, rounded to nearest even. Blocks of 32 elements, whose scale is an f16:
  //   Q8_0: scale = amax / 127, codes x * (1/scale) in -127…127; Q4_0: scale = x_amax / -8 (the element of the largest
  //   magnitude, the first of equals), codes x * (1/scale) in -8…7; 1/scale of the rounded scale, all codes 0 where that
  //   is 0. A NaN or infinity in a block makes its scale NaN.
  void (*store_key)(const float* k, int D, int slot, CacheType, uint8_t* page);
  void (*store_value)(const float* v, int D, int slot, CacheType, uint8_t* page);

  size_t (*attention_scratch_bytes)(int R, int D);
  void (*attention_chunk)(const AttentionArgs&);

  // Folds a chunk's m2, l2 [R] and o2 [R][D] into m1, l1, o1, chunks in ascending order: m = max(m1, m2), the first where
  // either is a NaN; both sides scaled by exp(their m - m) and added (o1*a + o2*b, unfused). A row whose l2 is 0 keeps
  // its state, one whose l1 is 0 takes the chunk's. Begin with l1 = 0.
  void (*attention_fold)(float* m1, float* l1, float* o1, const float* m2, const float* l2, const float* o2, int R,
                         int D);

  // o = o / l. With sinks [R], logits that join the softmax without a value: m' = max(sink, m), a = exp(m - m'),
  // o = (o*a) / (l*a + exp(sink - m')).
  void (*attention_finish)(const float* m, const float* l, float* o, const float* sinks, int R, int D);

  // The largest of x[0..V) and the sum of exp(x - max) (16 lanes, then the tree). Returns false when x holds a NaN or
  // +inf, or nothing finite; max and sum are then undefined.
  bool (*softmax_statistics)(const float* x, int V, float* max, float* sum);
};

// Tables that this machine offers, best first, then those that only their name chooses, the plain one last. `select` takes
// the best that passes its self-test, or the one named (null when the machine lacks it or it fails).
const Ops* select_ops(const char* forced_name);
int supported_ops(const Ops** tables, int count_max);

}  // namespace magnitude
