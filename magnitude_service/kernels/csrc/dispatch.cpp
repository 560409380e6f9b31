// Which tables this machine offers: on x86-64 what the processor has (CPUID) and the operating system saves (XGETBV), on
// ARM64 what the operating system says of the processor.
#include "dispatch.h"

#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace magnitude {
namespace {

#if defined(__x86_64__)

constexpr uint64_t kYmmState = 0x6;      // XCR0: xmm and upper halves of ymm
constexpr uint64_t kZmmState = 0xe6;     // and mask registers, upper halves of zmm, zmm16…31
constexpr uint64_t kTileState = 0x60000; // configuration and data of matrix tiles

struct Features {
  bool avx2 = false;
  bool avx_vnni = false;
  bool avx512 = false;
  bool amx = false;
};

bool all_bits(uint32_t word, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if (!(word >> bit & 1)) return false;
  }
  return true;
}

uint64_t enabled_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives matrix tiles to a process that asks, and with it to threads and children made later. The kernel keeps 8 KiB
// for a thread from its first use on.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long request_permission = 0x1023, tile_data = 18;   // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

Features detect() {
  Features features;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
  const bool leaf1 = all_bits(c, {12, 27, 28, 29});                  // FMA, OSXSAVE, AVX, F16C
  if (!leaf1 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return features;
  const uint64_t state = enabled_state();
  features.avx2 = all_bits(b, {5, 8}) && (state & kYmmState) == kYmmState;   // AVX2, BMI2
  features.avx512 = features.avx2 && (state & kZmmState) == kZmmState &&
                    all_bits(b, {16, 17, 30, 31}) && all_bits(c, {11});      // F, DQ, BW, VL; VNNI
  features.amx = features.avx512 && all_bits(d, {24, 25}) &&                 // TILE, INT8
                 (state & kTileState) == kTileState && may_use_tiles();
  features.avx_vnni = features.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && all_bits(a, {4});   // AVX-VNNI
  return features;
}

#elif defined(__aarch64__)

// FEAT_DotProd: products of signed bytes, added in fours. FEAT_I8MM: of two by two rows of eight signed bytes. Conversions
// of f16 belong to every ARM64 processor.
struct Features {
  bool dot_products = false;
  bool byte_matrices = false;
};

#if defined(__APPLE__)
bool has_feature(const char* name) {
  int present = 0;
  size_t bytes = sizeof present;
  return sysctlbyname(name, &present, &bytes, nullptr, 0) == 0 && present == 1;
}
#endif

Features detect() {
  Features features;
#if defined(__linux__)
  constexpr unsigned long dot_products = 1ul << 20;    // HWCAP_ASIMDDP
  constexpr unsigned long byte_matrices = 1ul << 13;   // HWCAP2_I8MM
  features.dot_products = (getauxval(AT_HWCAP) & dot_products) != 0;
  features.byte_matrices = features.dot_products && (getauxval(AT_HWCAP2) & byte_matrices) != 0;
#elif defined(__APPLE__)
  features.dot_products = has_feature("hw.optional.arm.FEAT_DotProd");
  features.byte_matrices = features.dot_products && has_feature("hw.optional.arm.FEAT_I8MM");
#endif
  return features;
}

#endif

}  // namespace

int supported_ops(const Ops** tables, int count_max) {
  int count = 0;
  const auto append = [&](const Ops& table) {
    if (count < count_max) tables[count++] = &table;
  };
#if defined(__x86_64__)
  static const Features features = detect();   // once: a virtual machine takes microseconds for each CPUID
  if (features.avx512) append(kAvx512Ops);
  if (features.avx_vnni) append(kAvxVnniOps);
  if (features.avx2) append(kAvx2Ops);
  if (features.amx) append(kAmxOps);   // behind those that are chosen without its name
#elif defined(__aarch64__)
  const Features features = detect();
  if (features.byte_matrices) append(kNeonI8mmOps);
  if (features.dot_products) append(kNeonOps);
#endif
  append(kScalarOps);
  return count;
}

const Ops* find_ops(const char* name) {
  const Ops* tables[kTablesMax];
  const int count = supported_ops(tables, kTablesMax);
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(tables[i]->name, name) == 0) return tables[i];
  }
  return nullptr;
}

}  // namespace magnitude
