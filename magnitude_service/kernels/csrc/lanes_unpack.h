// Weights of many rows at once, lane by lane: from the bytes of the map to codes and scales.
//
// Rows are read in pieces of 16 bytes, turned so that a vector holds the same four bytes of every row; from there on
// everything is vertical. Included after the lanes and the dot file of an instruction set; scalar_blocks.h is the
// plain twin, blocks.h draws the bytes.
#pragma once

#include "blocks.h"

namespace magnitude {
namespace {

// Rows are unpacked kUnpackRows at a time, a lane each: a group of 16, unless an instruction set has shorter vectors and
// names them itself, with the operations below on them.
#ifndef MAGNITUDE_UNPACK_ROWS
using RowWords = Words;     // a dword of every row
using RowFloats = Floats;
constexpr int kUnpackRows = kRowGroup;
constexpr int kFewTokens = 0;           // tokens up to which a panel is a part of a row, not all of it …
constexpr int kFewTokensBlocks = 16;    // … of so many blocks
constexpr bool kTakesNibbles = false;   // whether sinks take nibbles as they lie
template <class Sink>
using HeldSink = Sink&;                 // how unpack_part holds a sink
template <class Type>
constexpr int direct_tokens = kDirectTokens;   // tokens up to which a type's codes are multiplied as they are unpacked
MAGNITUDE_INLINE RowWords row_word(uint32_t value) { return word(value); }
MAGNITUDE_INLINE Floats joined(const RowFloats parts[1]) { return parts[0]; }
MAGNITUDE_INLINE void hold(RowFloats&) {}
MAGNITUDE_INLINE RowFloats load_part(const float* from) { return load(from); }
MAGNITUDE_INLINE RowFloats load_f16_part(const uint8_t* from) { return load_f16(from); }
MAGNITUDE_INLINE RowFloats load_bf16_part(const uint8_t* from) { return load_bf16(from); }
// The f16 at `from` of every row, `stride` bytes apart, 16 bytes of which are there.
inline RowFloats load_f16_of_rows(const uint8_t* from, size_t stride) {
  RowWords words[4];
  load_piece(from, stride, words);
  return floats_from_f16_words(words[0]);
}
template <class Type, class Panel>
MAGNITUDE_INLINE PanelSink<Type> panel_sink(Panel* panels, int) {
  return {panels};
}
#endif
constexpr int kGroupParts = kRowGroup / kUnpackRows;

// kUnpackRows rows, or fewer with the rest of no interest, `stride` bytes apart.
struct Rows {
  const uint8_t* first;
  size_t stride;
};

// What a type's header says: d in the low half of its first word; where a minimum follows, it is in the high half.
inline RowFloats low_f16(RowWords header) { return floats_from_f16_words(header); }
inline RowFloats high_f16(RowWords header) { return floats_from_f16_words(shift_right<16>(header)); }

// A type's unpack(rows, sink) reads the block at rows.first and hands on what it finds, block b of 32 by block of 32:
//   sink.codes<b, j>(words)         inputs 4j…4j+3 of every row, offset included; j ascends within each half
//   sink.low_nibbles<b, j, count>(words), sink.high_nibbles<b, j, count>(words)
//                                   instead of codes where kTakesNibbles: of `count` words, the first one's inputs 4j…4j+3
//   sink.finish<b>(scale, second)   after the codes of b, b ascending; second is a minimum as it is added, or the scale
//                                   of the second half, or nothing

template <int b, int j, int count, class Sink>
MAGNITUDE_INLINE void hand_low_nibbles(const RowWords* qs, Sink& sink) {
  if constexpr (kTakesNibbles) {
    sink.template low_nibbles<b, j, count>(qs);
  } else if constexpr (count > 0) {
    sink.template codes<b, j>(bits_and(qs[0], row_word(0x0f0f0f0f)));
    hand_low_nibbles<b, j + 1, count - 1>(qs + 1, sink);
  }
}

template <int b, int j, int count, class Sink>
MAGNITUDE_INLINE void hand_high_nibbles(const RowWords* qs, Sink& sink) {
  if constexpr (kTakesNibbles) {
    sink.template high_nibbles<b, j, count>(qs);
  } else if constexpr (count > 0) {
    sink.template codes<b, j>(bits_and(shift_right<4>(qs[0]), row_word(0x0f0f0f0f)));
    hand_high_nibbles<b, j + 1, count - 1>(qs + 1, sink);
  }
}

template <int b, int j = 0, class Sink>
MAGNITUDE_INLINE void hand_five_bits(const RowWords qs[4], RowWords qh, Sink& sink) {
  if constexpr (j < 8) {
    const RowWords nibbles = bits_and(j < 4 ? qs[j % 4] : shift_right<4>(qs[j % 4]), row_word(0x0f0f0f0f));
    sink.template codes<b, j>(bits_or(nibbles, spread_bits<j>(qh)));
    hand_five_bits<b, j + 1>(qs, qh, sink);
  }
}

struct Q4_0 {
  static constexpr int offset = 8, bytes = kBytesQ4_0, elements = kBlock;
  static constexpr bool has_minimum = false, has_halves = false;
  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords qs[4];
    const RowFloats d = load_f16_of_rows(rows.first, rows.stride);
    load_piece(rows.first + 2, rows.stride, qs);
    hand_low_nibbles<0, 0, 4>(qs, sink);
    hand_high_nibbles<0, 4, 4>(qs, sink);
    sink.template finish<0>(d, RowFloats{});
  }
};

struct Q4_1 {
  static constexpr int offset = 0, bytes = kBytesQ4_1, elements = kBlock;
  static constexpr bool has_minimum = true, has_halves = false;
  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords header[4], qs[4];
    load_piece(rows.first, rows.stride, header);
    load_piece(rows.first + 4, rows.stride, qs);
    hand_low_nibbles<0, 0, 4>(qs, sink);
    hand_high_nibbles<0, 4, 4>(qs, sink);
    sink.template finish<0>(low_f16(header[0]), high_f16(header[0]));
  }
};

struct Q5_0 {
  static constexpr int offset = 16, bytes = kBytesQ5_0, elements = kBlock;
  static constexpr bool has_minimum = false, has_halves = false;
  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords header[4], qs[4];
    load_piece(rows.first, rows.stride, header);
    load_piece(rows.first + 6, rows.stride, qs);
    hand_five_bits<0>(qs, bits_or(shift_right<16>(header[0]), shift_left<16>(header[1])), sink);
    sink.template finish<0>(low_f16(header[0]), RowFloats{});
  }
};

struct Q5_1 {
  static constexpr int offset = 0, bytes = kBytesQ5_1, elements = kBlock;
  static constexpr bool has_minimum = true, has_halves = false;
  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords header[4], qs[4];
    load_piece(rows.first, rows.stride, header);
    load_piece(rows.first + 8, rows.stride, qs);
    hand_five_bits<0>(qs, header[1], sink);
    sink.template finish<0>(low_f16(header[0]), high_f16(header[0]));
  }
};

struct Q8_0 {
  static constexpr int offset = 128, bytes = kBytesQ8_0, elements = kBlock;
  static constexpr bool has_minimum = false, has_halves = false;
  template <int j = 0, class Sink>
  static MAGNITUDE_INLINE void hand_bytes(const RowWords qs[8], Sink& sink) {
    if constexpr (j < 8) {
      sink.template codes<0, j>(bits_xor(qs[j], row_word(0x80808080)));   // signed bytes with an offset of 128
      hand_bytes<j + 1>(qs, sink);
    }
  }
  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords qs[8];
    const RowFloats d = load_f16_of_rows(rows.first, rows.stride);
    load_piece(rows.first + 2, rows.stride, qs);
    load_piece(rows.first + 18, rows.stride, qs + 4);
    hand_bytes(qs, sink);
    sink.template finish<0>(d, RowFloats{});
  }
};

// Byte i of every lane as a number.
template <int i>
MAGNITUDE_INLINE RowFloats byte_of(RowWords words) {
  if constexpr (i == 3) return floats_from_words(shift_right<24>(words));
  return floats_from_words(bits_and(i == 0 ? words : shift_right<8 * i>(words), row_word(0xff)));
}

template <int i>
MAGNITUDE_INLINE RowFloats signed_byte_of(RowWords words) {
  return floats_from_words(shift_right_signed<24>(i == 3 ? words : shift_left<24 - 8 * i>(words)));
}

// The eight scales and minima of a Q4_K or Q5_K block, whose first 16 bytes are d, dmin and the packed 12.
struct KScales {
  RowFloats d, minus_dmin;
  RowWords scales[2], minima[2];   // a byte each of sub-blocks 0…3 and 4…7

  MAGNITUDE_INLINE explicit KScales(Rows rows) {
    RowWords header[4];
    load_piece(rows.first, rows.stride, header);
    d = low_f16(header[0]);
    minus_dmin = flip_sign(high_f16(header[0]));
    const RowWords six = row_word(0x3f3f3f3f), four = row_word(0x0f0f0f0f), top = row_word(0x30303030);
    scales[0] = bits_and(header[1], six);
    minima[0] = bits_and(header[2], six);
    scales[1] = bits_or(bits_and(header[3], four), bits_and(shift_right<2>(header[1]), top));
    minima[1] = bits_or(bits_and(shift_right<4>(header[3]), four), bits_and(shift_right<2>(header[2]), top));
  }

  template <int b, class Sink>
  MAGNITUDE_INLINE void finish(Sink& sink) const {
    sink.template finish<b>(multiply(d, byte_of<b % 4>(scales[b / 4])),
                            multiply(minus_dmin, byte_of<b % 4>(minima[b / 4])));
  }
};

struct Q4_K {
  static constexpr int offset = 0, bytes = kBytesQ4_K, elements = kSuperBlock;
  static constexpr bool has_minimum = true, has_halves = false;

  // Block b lies in the low nibbles of 32 bytes, block b + 1 in the high ones.
  template <int b, class Sink>
  static MAGNITUDE_INLINE void hand_pair(Rows rows, const KScales& scales, Sink& sink) {
    RowWords qs[8];
    load_piece(rows.first + 16 + b * 16, rows.stride, qs);
    load_piece(rows.first + 32 + b * 16, rows.stride, qs + 4);
    hand_low_nibbles<b, 0, 8>(qs, sink);
    scales.finish<b>(sink);
    hand_high_nibbles<b + 1, 0, 8>(qs, sink);
    scales.finish<b + 1>(sink);
  }

  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    const KScales scales(rows);
    hand_pair<0>(rows, scales, sink);
    hand_pair<2>(rows, scales, sink);
    hand_pair<4>(rows, scales, sink);
    hand_pair<6>(rows, scales, sink);
  }
};

struct Q5_K {
  static constexpr int offset = 0, bytes = kBytesQ5_K, elements = kSuperBlock;
  static constexpr bool has_minimum = true, has_halves = false;

  // Bit s of every byte, moved to bit 4.
  template <int s>
  static MAGNITUDE_INLINE RowWords fifth_bit(RowWords qh) {
    constexpr int left = s < 4 ? 4 - s : 0, right = s < 4 ? 0 : s - 4;
    return bits_and(s == 4 ? qh : s < 4 ? shift_left<left>(qh) : shift_right<right>(qh), row_word(0x10101010));
  }

  template <int b, int j = 0, class Sink>
  static MAGNITUDE_INLINE void hand_block(const RowWords qs[8], const RowWords qh[8], Sink& sink) {
    if constexpr (j < 8) {
      const RowWords nibbles = bits_and(b % 2 ? shift_right<4>(qs[j]) : qs[j], row_word(0x0f0f0f0f));
      sink.template codes<b, j>(bits_or(nibbles, fifth_bit<b>(qh[j])));
      hand_block<b, j + 1>(qs, qh, sink);
    }
  }

  template <int b, class Sink>
  static MAGNITUDE_INLINE void hand_pair(Rows rows, const KScales& scales, const RowWords qh[8], Sink& sink) {
    RowWords qs[8];
    load_piece(rows.first + 48 + b * 16, rows.stride, qs);
    load_piece(rows.first + 64 + b * 16, rows.stride, qs + 4);
    hand_block<b>(qs, qh, sink);
    scales.finish<b>(sink);
    hand_block<b + 1>(qs, qh, sink);
    scales.finish<b + 1>(sink);
  }

  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    const KScales scales(rows);
    RowWords qh[8];
    load_piece(rows.first + 16, rows.stride, qh);
    load_piece(rows.first + 32, rows.stride, qh + 4);
    hand_pair<0>(rows, scales, qh, sink);
    hand_pair<2>(rows, scales, qh, sink);
    hand_pair<4>(rows, scales, qh, sink);
    hand_pair<6>(rows, scales, qh, sink);
  }
};

struct Q6_K {
  static constexpr int offset = 32, bytes = kBytesQ6_K, elements = kSuperBlock;
  static constexpr bool has_minimum = false, has_halves = true;

  // Bits 4 and 5 of sub-block s of a half, moved into their place.
  template <int s>
  static MAGNITUDE_INLINE RowWords top_bits(RowWords qh) {
    constexpr int left = s < 2 ? 4 - 2 * s : 0;
    return bits_and(s == 2 ? qh : s < 2 ? shift_left<left>(qh) : shift_right<2>(qh), row_word(0x30303030));
  }

  template <int b, int j = 0, class Sink>
  static MAGNITUDE_INLINE void hand_block(const RowWords ql[8], const RowWords qh[8], Sink& sink) {
    if constexpr (j < 8) {
      const RowWords nibbles = bits_and(b % 4 < 2 ? ql[j] : shift_right<4>(ql[j]), row_word(0x0f0f0f0f));
      sink.template codes<b, j>(bits_or(nibbles, top_bits<b % 4>(qh[j])));
      hand_block<b, j + 1>(ql, qh, sink);
    }
  }

  // Block b, whose two scales are bytes of one word.
  template <int b, class Sink>
  static MAGNITUDE_INLINE void finish(RowFloats d, const RowWords scales[4], Sink& sink) {
    const RowWords four = scales[b / 2];
    constexpr int first = b % 2 * 2;
    sink.template finish<b>(multiply(d, signed_byte_of<first>(four)), multiply(d, signed_byte_of<first + 1>(four)));
  }

  template <int h, class Sink>
  static MAGNITUDE_INLINE void hand_half(Rows rows, RowFloats d, const RowWords scales[4], Sink& sink) {
    RowWords even[8], odd[8], qh[8];
    load_piece(rows.first + h * 64, rows.stride, even);
    load_piece(rows.first + h * 64 + 16, rows.stride, even + 4);
    load_piece(rows.first + h * 64 + 32, rows.stride, odd);
    load_piece(rows.first + h * 64 + 48, rows.stride, odd + 4);
    load_piece(rows.first + 128 + h * 32, rows.stride, qh);
    load_piece(rows.first + 144 + h * 32, rows.stride, qh + 4);
    hand_block<4 * h>(even, qh, sink);
    finish<4 * h>(d, scales, sink);
    hand_block<4 * h + 1>(odd, qh, sink);
    finish<4 * h + 1>(d, scales, sink);
    hand_block<4 * h + 2>(even, qh, sink);
    finish<4 * h + 2>(d, scales, sink);
    hand_block<4 * h + 3>(odd, qh, sink);
    finish<4 * h + 3>(d, scales, sink);
  }

  template <class Sink>
  static MAGNITUDE_INLINE void unpack(Rows rows, Sink& sink) {
    RowWords scales[4], tail[4];
    load_piece(rows.first + 192, rows.stride, scales);
    load_piece(rows.first + 194, rows.stride, tail);   // ends with d, the last two bytes of the block
    const RowFloats d = high_f16(tail[3]);
    hand_half<0>(rows, d, scales, sink);
    hand_half<1>(rows, d, scales, sink);
  }
};

}  // namespace
}  // namespace magnitude
