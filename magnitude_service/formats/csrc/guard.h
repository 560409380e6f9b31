// Keeps a process alive when a mapped file shrinks under it.
//
// Reading a page beyond the end of a mapped file raises SIGBUS, which ends the process. The guard handles it for the
// mappings that it knows: from the faulting page to the mapping's end it puts zero pages (everything there is as lost
// as the page itself), marks the mapping as damaged, and lets the read go on. The zeros are never used in silence: who
// computes from a mapping asks `is_damaged` afterwards and throws the result away.
//
// A SIGBUS anywhere else goes to the handler that was installed before, or ends the process as ever. The handler takes
// no lock and allocates nothing. A thread that blocks SIGBUS is not protected: the kernel ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace magnitude::formats::guard {

constexpr std::size_t MAPPINGS_MAX = 4096;

using Slot = std::size_t;

// Watches [begin, begin + bytes), whole pages; none where the table is full or the handler cannot be installed.
std::optional<Slot> watch(const void* begin, std::size_t bytes);

// Lets a watched mapping end earlier.
void shrink(Slot slot, std::size_t bytes);

// Must come before the memory is unmapped.
void unwatch(Slot slot);

// Whether a read of this mapping ever met a page that the file no longer has. Never goes back to false.
bool is_damaged(Slot slot);

}  // namespace magnitude::formats::guard
