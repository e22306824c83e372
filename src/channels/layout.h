// Where the elements of a call lie: the positions and channels of every operand as x[n][c][s], in the layout that x has.
// An operand of another layout, or whose positions are not a constant step apart, is replaced by a dense copy.
#pragma once

#include <initializer_list>

#include "channels/channels.h"
#include "normkit/tensor.h"

namespace normkit::channels {

class Placement {
 public:
  enum class Role { input, output };
  struct Slot {
    const ConstView& view;  // may be absent
    Role role;
  };
  // x comes first. `dense_channels`: the channels of a group must lie one behind the other (planes).
  Placement(int channel_axis, bool dense_channels, std::initializer_list<Slot> slots);

  Layout layout() const { return layout_; }
  const Sizes& sizes() const { return sizes_; }
  // Bytes that one reading or writing of every operand moves.
  int64_t bytes() const { return bytes_; }
  // Memory for the copies; then load() copies the inputs and store() the outputs. In between: the operands.
  size_t scratch_bytes() const { return scratch_bytes_; }
  void load(char* scratch, int threads);
  void store(int threads) const;
  const Tensor& operator[](int slot) const { return operands_[slot].at; }

 private:
  static constexpr int kMaxOperands = 4;
  struct Operand {
    Tensor at;   // what the kernels are given
    Tensor own;  // where n and c lie in the caller's memory, if copied
    Role role = Role::input;
    bool copied = false;
    int64_t size = 0;                           // bytes of an element
    int rank = 0;                               // position dims
    int64_t shape[kMaxRank], stride[kMaxRank];  // of the positions, in bytes
  };
  void describe(Operand& o, const Slot& slot, DType x, int channel_axis);
  bool fits(Operand& o, bool dense_channels) const;
  void make_dense(Operand& o);
  template <bool kIn>
  void copy(const Operand& o, int threads) const;

  Layout layout_ = Layout::planes;
  Sizes sizes_{1, 1, 1};
  int64_t bytes_ = 0;
  size_t scratch_bytes_ = 0;
  int count_ = 0;
  Operand operands_[kMaxOperands];
};

}  // namespace normkit::channels
