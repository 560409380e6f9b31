#pragma once

#include <functional>
#include <iterator>
#include <utility>

namespace magnitude {

// What comes one by one, for `for (auto& item : range)`. It can be gone through once.
template <typename Item>
class Range {
 public:
  // `next` reads an item, or says that there are no more.
  explicit Range(std::function<bool(Item&)> next) : next_(std::move(next)) {}

  struct End {};

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Item;
    using difference_type = std::ptrdiff_t;
    using pointer = Item*;
    using reference = Item&;

    explicit Iterator(Range* range) : range_(range) { ++*this; }
    Item& operator*() { return range_->item_; }
    Iterator& operator++() {
      more_ = range_->next_(range_->item_);
      return *this;
    }
    bool operator!=(End) const { return more_; }

   private:
    Range* range_;
    bool more_ = false;
  };

  Iterator begin() { return Iterator(this); }
  End end() { return {}; }

 private:
  std::function<bool(Item&)> next_;
  Item item_{};
};

}  // namespace magnitude
