// Owns one piece of read-only memory: a mapped file under the guard, or a private copy of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "guard.h"

namespace magnitude::formats {

class Mapping {
  public:
    Mapping() = default;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    // Each returns 0 or an errno.
    int map_file(int descriptor, std::size_t bytes);
    int allocate(std::size_t bytes);  // writable zeros, until `seal`
    int seal();
    int lock();                       // mlock: every page comes into memory and stays
    int trim(std::size_t bytes);      // gives back the whole pages behind the first `bytes`

    // Reads every page of a mapped file once, so that no later read waits for the disk.
    void populate() const;

    bool is_damaged() const { return slot_ && guard::is_damaged(*slot_); }
    std::uint8_t* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

  private:
    void advise_large_pages() const;

    std::uint8_t* data_ = nullptr;
    std::size_t bytes_ = 0;         // what may be read
    std::size_t mapped_bytes_ = 0;  // the same in whole pages
    std::optional<guard::Slot> slot_;
};

}  // namespace magnitude::formats
