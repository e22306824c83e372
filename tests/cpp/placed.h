// A [rows, cols] tensor laid out in memory in some other way than row by row, without gaps.
#pragma once

#include <vector>

#include "buffer.h"

namespace normkit::test {

struct Layout {
  const char* name;
  int64_t shift = 0;     // elements before the first one
  int64_t row_pad = 0;   // elements between the rows
  int64_t col_step = 1;  // elements from one column to the next
  bool transposed = false;
  bool rows_backwards = false, cols_backwards = false;  // negative strides

  // For outputs, which take no negative strides.
  Layout forwards() const {
    Layout l = *this;
    l.rows_backwards = l.cols_backwards = false;
    return l;
  }
};

class Placed {
 public:
  // An input with these contents, or an output (contents: its type and size; the values are not copied).
  Placed(const Buffer& contents, int64_t rows, int64_t cols, const Layout& l, bool output = false)
      : rows_(rows), cols_(cols) {
    if (!contents) return;
    row_stride_ = l.transposed ? 1 : cols * l.col_step + l.row_pad;
    col_stride_ = l.transposed ? rows + l.row_pad : l.col_step;
    const int64_t span = rows && cols ? (rows - 1) * row_stride_ + (cols - 1) * col_stride_ + 1 : 0;
    memory_ = Buffer(contents.dtype(), span, l.shift);
    if (l.rows_backwards) origin_ += (rows - 1) * row_stride_, row_stride_ = -row_stride_;
    if (l.cols_backwards) origin_ += (cols - 1) * col_stride_, col_stride_ = -col_stride_;
    if (!output)
      for (int64_t i = 0; i < rows * cols; ++i) memory_.set(index(i), contents.get(i));
    before_ = memory_;
  }
  explicit operator bool() const { return bool(memory_); }

  View view() { return memory_ ? strided<View>(memory_, origin_, {rows_, cols_}, {row_stride_, col_stride_}) : View(); }
  Buffer contents() const {
    if (!memory_) return {};
    Buffer b(memory_.dtype(), rows_ * cols_);
    const size_t width = static_cast<size_t>(dtype_size(b.dtype()));
    for (int64_t i = 0; i < b.size(); ++i)
      std::memcpy(b.data() + i * dtype_size(b.dtype()), memory_.data() + index(i) * dtype_size(b.dtype()), width);
    return b;
  }
  // True if no byte between the elements has changed since the construction.
  bool gaps_untouched() const {
    if (!memory_) return true;
    Buffer now = memory_;
    for (int64_t i = 0; i < rows_ * cols_; ++i) now.set(index(i), 0);
    Buffer then = before_;
    for (int64_t i = 0; i < rows_ * cols_; ++i) then.set(index(i), 0);
    return now == then;
  }

 private:
  int64_t index(int64_t i) const { return origin_ + i / cols_ * row_stride_ + i % cols_ * col_stride_; }

  int64_t rows_, cols_, origin_ = 0, row_stride_ = 0, col_stride_ = 0;
  Buffer memory_, before_;
};

}  // namespace normkit::test
