// Sixteen elements of a key/value page as float32, exactly, for every type of pages (cache_pages.h).
#pragma once

#include "lanes_matmul.h"
#include "lanes_vector.h"

#include "cache_store.h"   // after f16_from_float

namespace magnitude {
namespace {

// Keys: 16 positions from `position` on, element begin + i by load(i), for i below `run`. `row_bytes` of a page per
// element.
template <class Element>
struct FloatKeys {
  static constexpr int run = 1 << 30, row_bytes = kPageTokens * Element::bytes;
  const uint8_t* cells;

  MAGNITUDE_INLINE void seek(const uint8_t* page, const PageShape&, int begin, int position) {
    cells = page + (static_cast<size_t>(begin) * kPageTokens + position) * Element::bytes;
  }
  MAGNITUDE_INLINE Floats load(int i) const { return Element::load16(cells + static_cast<size_t>(i) * row_bytes); }
};

// Values: 16 elements from `d` on of one position. `lanes` of them exist.
template <class Element>
struct FloatValues {
  static size_t row_bytes(const PageShape& shape) { return static_cast<size_t>(shape.cells) * Element::bytes; }
  static MAGNITUDE_INLINE Floats load(const uint8_t* page, const PageShape& shape, int slot, int d, int lanes) {
    const uint8_t* at = page + slot * row_bytes(shape) + static_cast<size_t>(d) * Element::bytes;
    return lanes == kLanes ? Element::load16(at) : load_last<Element>(at, lanes);
  }
};

// A code with its offset is an unsigned byte or nibble u: the element is fma(u, scale, -offset*scale), all of it exact.
struct ScaledCodes {
  Floats scale, minimum;

  MAGNITUDE_INLINE Floats operator()(Words codes) const { return fma(floats_from_words(codes), scale, minimum); }
};

MAGNITUDE_INLINE ScaledCodes scaled_codes(Floats scale, int offset) {
  return {scale, multiply(scale, broadcast(static_cast<float>(-offset)))};
}

struct KeysQ8_0 {
  static constexpr int run = kBlock, row_bytes = kPageTokens;
  const uint8_t* cells;
  ScaledCodes codes;

  MAGNITUDE_INLINE void seek(const uint8_t* page, const PageShape& shape, int begin, int position) {
    cells = page + static_cast<size_t>(begin) * kPageTokens + position;
    const size_t scale = static_cast<size_t>(begin / kBlock) * kPageTokens + position;
    codes = scaled_codes(load_f16(page + shape.cells_bytes() + scale * 2), kCodeOffsetQ8_0);
  }
  MAGNITUDE_INLINE Floats load(int i) const { return codes(load_bytes(cells + static_cast<size_t>(i) * kPageTokens)); }
};

MAGNITUDE_INLINE Floats broadcast_scale(const uint8_t* page, const PageShape& shape, int slot, int d) {
  uint16_t half;
  const size_t index = static_cast<size_t>(slot) * shape.scales + d / kBlock;
  __builtin_memcpy(&half, page + shape.cells_bytes() + index * 2, 2);
  return broadcast(float_from_f16(half));
}

struct ValuesQ8_0 {
  static size_t row_bytes(const PageShape& shape) { return shape.cells; }
  static MAGNITUDE_INLINE Floats load(const uint8_t* page, const PageShape& shape, int slot, int d, int) {
    const uint8_t* cells = page + static_cast<size_t>(slot) * shape.cells + d;
    return scaled_codes(broadcast_scale(page, shape, slot, d), kCodeOffsetQ8_0)(load_bytes(cells));
  }
};

// The high nibbles of bytes stay where they are, sixteen times too large; the scale makes up for it.
MAGNITUDE_INLINE ScaledCodes scaled_nibbles(Floats scale, bool high) {
  const ScaledCodes low = scaled_codes(scale, kCodeOffsetQ4_0);
  return {multiply(scale, broadcast(high ? 1 / 16.0f : 1.0f)), low.minimum};
}
MAGNITUDE_INLINE Words nibble_mask(bool high) { return word(high ? 0xf0 : 0x0f); }

struct KeysQ4_0 {
  static constexpr int run = kBlock / 2, row_bytes = kPageTokens / 2;
  const uint8_t* cells;
  ScaledCodes codes;
  Words mask;

  MAGNITUDE_INLINE void seek(const uint8_t* page, const PageShape& shape, int begin, int position) {
    const int block = begin / kBlock;
    const bool high = begin % kBlock != 0;
    cells = page + static_cast<size_t>(block) * kBlock / 2 * kPageTokens + position;
    const size_t scale = static_cast<size_t>(block) * kPageTokens + position;
    codes = scaled_nibbles(load_f16(page + shape.cells_bytes() + scale * 2), high);
    mask = nibble_mask(high);
  }
  MAGNITUDE_INLINE Floats load(int i) const {
    return codes(bits_and(load_bytes(cells + static_cast<size_t>(i) * kPageTokens), mask));
  }
};

struct ValuesQ4_0 {
  static size_t row_bytes(const PageShape& shape) { return shape.cells; }
  static MAGNITUDE_INLINE Floats load(const uint8_t* page, const PageShape& shape, int slot, int d, int) {
    const bool high = d % kBlock != 0;
    const uint8_t* cells = page + static_cast<size_t>(slot) * shape.cells + d / kBlock * (kBlock / 2);
    const ScaledCodes codes = scaled_nibbles(broadcast_scale(page, shape, slot, d), high);
    return codes(bits_and(load_bytes(cells), nibble_mask(high)));
  }
};

// How a type of pages is read.
template <class KeyCells, class ValueCells>
struct Pages {
  using Keys = KeyCells;
  using Values = ValueCells;
};
template <class Element>
using FloatPages = Pages<FloatKeys<Element>, FloatValues<Element>>;

// Prefetches a page's share i of n, in the order in which it will be read.
MAGNITUDE_INLINE void prefetch_part(const uint8_t* page, size_t i, size_t bytes) {
  for (size_t byte = 0; byte < bytes; byte += kCacheLine) prefetch(page + i * bytes + byte);
}

// A page of keys as float32 [D][kPageTokens].
template <class Keys>
inline void unpack_keys(const uint8_t* page, const PageShape& shape, int D, const uint8_t* next, float* to) {
  for (int position = 0; position < kPageTokens; position += kLanes) {
    for (int begin = 0; begin < D; begin += Keys::run) {
      const int count = D - begin < Keys::run ? D - begin : Keys::run;
      Keys keys;
      keys.seek(page, shape, begin, position);
      for (int i = 0; i < count; ++i) {
        store(to + static_cast<size_t>(begin + i) * kPageTokens + position, keys.load(i));
        if (position == 0 && next != nullptr) prefetch_part(next, begin + i, Keys::row_bytes);
      }
    }
  }
}

// A page of values as float32 [kPageTokens][D].
template <class Values>
inline void unpack_values(const uint8_t* page, const PageShape& shape, int D, const uint8_t* next, float* to) {
  for (int slot = 0; slot < kPageTokens; ++slot, to += D) {
    if (next != nullptr) prefetch_part(next, slot, Values::row_bytes(shape));
    over_vectors(D, [&](int d, int lanes) { store_part(to + d, Values::load(page, shape, slot, d, lanes), lanes); });
  }
}

}  // namespace
}  // namespace magnitude
