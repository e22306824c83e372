// Where the rows of a call lie. The batch dims of all operands are collapsed together as far as their strides allow;
// rows of the innermost batch dim are then a constant step apart and go to the kernel in one call.
//
// Kernels want each row as one run of elements. Operands whose normalized dims are strided are gathered into scratch
// memory row by row, and outputs scattered from it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "normkit/tensor.h"
#include "rows/rows.h"

namespace normkit {

// Memory of the calling thread that grows and is reused by its next call, aligned to 64 bytes.
char* workspace(size_t bytes);

class Geometry {
 public:
  enum class Role { input, output, stat };  // stat: mean or rstd, one element per row
  struct Slot {
    const ConstView& view;  // may be absent
    Role role;
  };
  // The operands in the order of the call's each_operand().
  Geometry(const ConstView& x, int axis, std::initializer_list<Slot> slots);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Bytes that one reading or writing of every operand moves.
  int64_t bytes() const { return bytes_; }
  // Every row of every operand is one run, and all rows are a constant step apart: one visit() for all rows.
  bool simple() const { return all_runs_ && batch_rank_ <= 1; }
  bool all_runs() const { return all_runs_; }

  // Scratch memory that visit() needs.
  int64_t scratch_bytes() const { return all_runs_ ? 0 : count_ * row_scratch(); }

  // Calls f(call, count, row): rows [0, count) of `call`'s operands are the rows [row, row + count) of the tensors.
  // `call` is a copy of `prototype` with its operands placed.
  template <class Call, class F>
  void visit(const Call& prototype, int64_t row0, int64_t row1, char* scratch, F&& f) const {
    Call call = prototype;
    while (row0 < row1) {
      const int64_t count = all_runs_ ? std::min(row1 - row0, inner_rows() - row0 % inner_rows()) : 1;
      char* at[kMaxTensors];
      for (int i = 0; i < count_; ++i) at[i] = start(tensors_[i], row0, scratch + i * row_scratch());
      int i = 0;
      call.each_operand([&](rows::Operand& o) {
        o.data = at[i];
        o.step = at[i] && batch_rank_ > 0 ? tensors_[i].batch[batch_rank_ - 1] : 0;
        ++i;
      });
      f(call, count, row0);
      if (!all_runs_)
        for (i = 0; i < count_; ++i) finish(tensors_[i], row0, at[i]);
      row0 += count;
    }
  }

 private:
  static constexpr int kMaxTensors = 8;
  struct Tensor {
    char* data = nullptr;
    int64_t size = 0;  // bytes of an element
    Role role = Role::input;
    bool run = true;
    int64_t batch[kMaxRank], inner[kMaxRank];  // strides in bytes; set as far as the ranks go
  };
  int64_t inner_rows() const { return batch_rank_ > 0 ? batch_shape_[batch_rank_ - 1] : 1; }
  int64_t row_scratch() const { return (cols_ * 8 + 63) / 64 * 64; }
  void place(const Slot& slot, const ConstView& x, int axis, Tensor& t);
  void collapse_batch();
  bool mergeable(int outer, int inner) const;
  int64_t row_offset(const Tensor& t, int64_t row) const;
  char* start(const Tensor& t, int64_t row, char* scratch) const;
  void finish(const Tensor& t, int64_t row, char* run) const;
  template <class F>
  void each_element(const Tensor& t, char* row, F&& f) const;

  int64_t rows_ = 1, cols_ = 1, bytes_ = 0;
  bool all_runs_ = true;
  int batch_rank_ = 0, inner_rank_ = 0, count_ = 0;
  int64_t batch_shape_[kMaxRank], inner_shape_[kMaxRank];
  Tensor tensors_[kMaxTensors];
};

// Copies a parameter of `cols` elements, or one for all, into a run.
void gather_parameter(const ConstView& v, int64_t cols, char* run);
// Where element `index` of a view lies, in elements from its data; the last dimension runs fastest.
int64_t element_offset(const ConstView& v, int64_t index);
// True when the parameter already is a run of `cols` elements.
bool is_run(const ConstView& v, int64_t cols);

}  // namespace normkit
