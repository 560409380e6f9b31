#include "attention_phase.h"

#include <algorithm>
#include <cstring>

namespace magnitude {

namespace {

float* row_of(const Workspace& workspace, int slot, int row) {
  return workspace.slot(slot) + row * workspace.slot_stride(slot);
}

}  // namespace

void AttentionPhase::run(const StepContext& context) const {
  if (stores_first(context)) {
    for_each_row(context.pool, context.step.T, [&](int, int row) {
      rotate(context, settings_.q_rotation, row, row_of(context.workspace, settings_.q, row), settings_.shape.heads);
      for (int head = 0; head < settings_.shape.key_value_heads; ++head) {
        store(context, context.sequence_of_row[row], row, head);
      }
    });
  }
  const std::vector<AttentionItem>& items = context.attention.items();
  context.pool.run(static_cast<int>(items.size()), [&](int thread, int index) {
    const AttentionItem& item = items[index];
    const AttentionTile& tile = context.attention.tile(item.tile);
    const bool sees_last = !context.attention.is_split() || item.chunk == tile.chunks - 1;
    if (sees_last && !stores_first(context)) store(context, tile.sequence, tile.row_begin, item.head);
    context.attention.is_split() ? attend_chunk(context, item, thread) : attend_whole(context, item, thread);
  });
}

// Rotates `count` heads of a row in place.
void AttentionPhase::rotate(const StepContext& context, const Rotation& rotation, int row, float* heads,
                            int count) const {
  if (rotation.dimensions == 0) return;
  const float* table = context.workspace.rope_table(rotation.table) + static_cast<size_t>(row) * rotation.dimensions;
  const auto rope = rotation.style == RopeStyle::kPairs ? context.ops.rope_pairs : context.ops.rope_halves;
  for (int head = 0; head < count; ++head) {
    rope(heads + head * settings_.shape.head_size, table, rotation.dimensions);
  }
}

// Rotates a row's key of one head, and puts it and the value into their page.
void AttentionPhase::store(const StepContext& context, int sequence, int row, int head) const {
  const StepArrays& step = context.step;
  const PagePool& pages = settings_.pages;
  const int position = step.positions[row], slot = position % kPageTokens, D = pages.head_size;
  const int page = step.page_tables[static_cast<size_t>(sequence) * step.pages_per_sequence + position / kPageTokens];
  float* k = row_of(context.workspace, settings_.k, row) + head * D;
  const float* v = row_of(context.workspace, settings_.v, row) + head * D;
  rotate(context, settings_.k_rotation, row, k, 1);
  context.ops.store_key(k, D, slot, pages.type, pages.key(page, settings_.layer, head));
  context.ops.store_value(v, D, slot, pages.type, pages.value(page, settings_.layer, head));
}

void AttentionPhase::attend_whole(const StepContext& context, const AttentionItem& item, int thread) const {
  const AttentionTile& tile = context.attention.tile(item.tile);
  AttentionSchedule::Thread& own = context.attention.thread(thread);
  const Queries queries = gather(context, tile, item.head, thread);
  const AttentionState folded = context.attention.state_in(own.folded.get(), queries.rows);
  const AttentionState next = context.attention.state_in(own.chunk.get(), queries.rows);
  const int first = first_chunk(context, tile);
  attend(context, tile, item.head, first, queries, folded, thread);
  for (int chunk = first + 1; chunk < tile.chunks; ++chunk) {
    attend(context, tile, item.head, chunk, queries, next, thread);
    fold(context, queries.rows, folded, next);
  }
  finish(context, tile, item.head, folded);
}

void AttentionPhase::attend_chunk(const StepContext& context, const AttentionItem& item, int thread) const {
  AttentionSchedule& schedule = context.attention;
  const AttentionTile& tile = schedule.tile(item.tile);
  const int first = first_chunk(context, tile), rows = tile.tokens * settings_.shape.group();
  if (item.chunk >= first) {
    const Queries queries = gather(context, tile, item.head, thread);
    attend(context, tile, item.head, item.chunk, queries, schedule.partial(tile, item.head, item.chunk), thread);
  }
  if (!schedule.finish_chunk(item.tile, item.head)) return;
  const AttentionState folded = schedule.partial(tile, item.head, first);
  for (int chunk = first + 1; chunk < tile.chunks; ++chunk) {
    fold(context, rows, folded, schedule.partial(tile, item.head, chunk));
  }
  finish(context, tile, item.head, folded);
}

// The first chunk of which a row of the tile sees something; those before it are not looked at.
int AttentionPhase::first_chunk(const StepContext& context, const AttentionTile& tile) const {
  const int64_t first_position = int64_t{context.step.positions[tile.row_begin]} + 1 - settings_.window;
  return first_position < 0 ? 0 : static_cast<int>(first_position / kChunkPositions);
}

// The query rows [tokens][G] of a tile and head, rotated.
AttentionPhase::Queries AttentionPhase::gather(const StepContext& context, const AttentionTile& tile, int head,
                                               int thread) const {
  AttentionSchedule::Thread& own = context.attention.thread(thread);
  const int G = settings_.shape.group(), D = settings_.shape.head_size;
  for (int t = 0; t < tile.tokens; ++t) {
    const int row = tile.row_begin + t;
    float* to = own.q.get() + static_cast<size_t>(t) * G * D;
    std::memcpy(to, row_of(context.workspace, settings_.q, row) + static_cast<size_t>(head) * G * D,
                sizeof(float) * G * D);
    if (!stores_first(context)) rotate(context, settings_.q_rotation, row, to, G);
    std::fill_n(own.limits.get() + t * G, G, context.step.positions[row] + 1);
  }
  return {own.q.get(), static_cast<size_t>(D), tile.tokens * G};
}

void AttentionPhase::attend(const StepContext& context, const AttentionTile& tile, int head, int chunk,
                            const Queries& queries, const AttentionState& state, int thread) const {
  const StepArrays& step = context.step;
  const PagePool& pages = settings_.pages;
  AttentionSchedule::Thread& own = context.attention.thread(thread);
  const int32_t* table = step.page_tables + static_cast<size_t>(tile.sequence) * step.pages_per_sequence;
  const int last_page = step.positions[tile.row_begin + tile.tokens - 1] / kPageTokens;
  const uint8_t* keys[kChunkPages];
  const uint8_t* values[kChunkPages];
  for (int p = 0; p < kChunkPages; ++p) {
    const int page = chunk * kChunkPages + p;
    keys[p] = page <= last_page ? pages.key(table[page], settings_.layer, head) : nullptr;
    values[p] = page <= last_page ? pages.value(table[page], settings_.layer, head) : nullptr;
  }
  AttentionArgs args;
  args.q = queries.q;
  args.q_stride = queries.stride;
  args.R = queries.rows;
  args.D = settings_.shape.head_size;
  args.limit = own.limits.get();
  args.first_position = chunk * kChunkPositions;
  args.keys = keys;
  args.values = values;
  args.cache_type = pages.type;
  args.scale = settings_.scale;
  args.window = settings_.window;
  args.softcap = settings_.softcap;
  args.m = state.m;
  args.l = state.l;
  args.o = state.o;
  args.scratch = own.scratch.get();
  context.ops.attention_chunk(args);
}

void AttentionPhase::fold(const StepContext& context, int rows, const AttentionState& into,
                          const AttentionState& chunk) const {
  context.ops.attention_fold(into.m, into.l, into.o, chunk.m, chunk.l, chunk.o, rows, settings_.shape.head_size);
}

void AttentionPhase::finish(const StepContext& context, const AttentionTile& tile, int head,
                            const AttentionState& state) const {
  const int G = settings_.shape.group(), D = settings_.shape.head_size;
  for (int t = 0; t < tile.tokens; ++t) {
    float* output = row_of(context.workspace, settings_.output, tile.row_begin + t) + static_cast<size_t>(head) * G * D;
    const int r = t * G;
    const float* sinks = settings_.sinks == nullptr ? nullptr : settings_.sinks + static_cast<size_t>(head) * G;
    context.ops.attention_finish(state.m + r, state.l + r, state.o + static_cast<size_t>(r) * D, sinks, G, D);
    std::memcpy(output, state.o + static_cast<size_t>(r) * D, sizeof(float) * G * D);
  }
}

}  // namespace magnitude
