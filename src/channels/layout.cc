#include "channels/layout.h"

#include <cstring>

#include "parallel.h"

namespace normkit::channels {
namespace {

// The one step between neighbouring positions, if there is one; 0 stands for any (at most one position).
bool common_step(int rank, const int64_t* shape, const int64_t* stride, int64_t& step) {
  step = 0;
  int64_t expected = 0;
  for (int d = rank - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (step == 0) {
      step = stride[d];
      expected = stride[d] * shape[d];
      if (step == 0) return false;  // repeated elements are no run
    } else {
      if (stride[d] != expected) return false;
      expected *= shape[d];
    }
  }
  return true;
}

void copy_element(char* to, const char* from, int64_t size) {
  switch (size) {
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    default: std::memcpy(to, from, 8);
  }
}

}  // namespace

Placement::Placement(int channel_axis, bool dense_channels, std::initializer_list<Slot> slots) {
  const ConstView& x = slots.begin()->view;
  sizes_.n = x.shape[0];
  sizes_.c = x.shape[channel_axis];
  for (int d = 1; d < x.rank; ++d)
    if (d != channel_axis) sizes_.s *= x.shape[d];
  for (const Slot& slot : slots) {
    Operand& o = operands_[count_++];
    if (slot.view) describe(o, slot, x.dtype, channel_axis);
  }
  // x decides, as its memory lies; memory of neither kind becomes the one that its shape suggests.
  const auto fits_as = [&](Layout layout) {
    layout_ = layout;
    return fits(operands_[0], dense_channels);
  };
  if (!(sizes_.s > 1 && fits_as(Layout::planes)) && !fits_as(Layout::columns))
    layout_ = channel_axis == 1 && sizes_.s > 1 ? Layout::planes : Layout::columns;
  for (int i = 0; i < count_; ++i) {
    Operand& o = operands_[i];
    if (!o.at.data) continue;
    bytes_ += sizes_.elems() * o.size;
    if (!fits(o, dense_channels && i == 0)) make_dense(o);
  }
}

void Placement::describe(Operand& o, const Slot& slot, DType x, int channel_axis) {
  const ConstView& v = slot.view;
  o.size = dtype_size(v.dtype);
  o.role = slot.role;
  o.at.data = static_cast<char*>(const_cast<void*>(v.data));
  o.at.f32 = v.dtype == DType::f32 && x != DType::f32;
  o.at.n = v.strides[0] * o.size;
  o.at.c = v.strides[channel_axis] * o.size;
  for (int d = 1; d < v.rank; ++d) {
    if (d == channel_axis) continue;
    o.shape[o.rank] = v.shape[d];
    o.stride[o.rank++] = v.strides[d] * o.size;
  }
}

// Also sets the step of the positions.
bool Placement::fits(Operand& o, bool dense_channels) const {
  if (!common_step(o.rank, o.shape, o.stride, o.at.s)) return false;
  if (layout_ == Layout::columns) return o.at.c == o.size || sizes_.c == 1;
  return (o.at.s == o.size || sizes_.s == 1) && (!dense_channels || o.at.c == o.size * sizes_.s || sizes_.c == 1);
}

void Placement::make_dense(Operand& o) {
  o.copied = true;
  o.own = o.at;
  const bool planes = layout_ == Layout::planes;
  o.at.s = planes ? o.size : o.size * sizes_.c;
  o.at.c = planes ? o.size * sizes_.s : o.size;
  o.at.n = o.size * sizes_.c * sizes_.s;
  scratch_bytes_ += static_cast<size_t>(padded(sizes_.elems()) * o.size);
}

// Element by element; the positions of one channel after the other, the channels shared by the threads.
template <bool kIn>
void Placement::copy(const Operand& o, int threads) const {
  parallel(threads, [&](int part) {
    const Range r = range_of(sizes_.n * sizes_.c, 1, threads, part);
    for (int64_t i = r.begin; i < r.end; ++i) {
      const int64_t n = i / sizes_.c, c = i % sizes_.c;
      char *dense = o.at.at(n, c).data, *own = o.own.at(n, c).data;
      int64_t at[kMaxRank] = {};
      for (int64_t s = 0; s < sizes_.s; ++s, dense += o.at.s) {
        kIn ? copy_element(dense, own, o.size) : copy_element(own, dense, o.size);
        for (int d = o.rank - 1; d >= 0; --d) {
          own += o.stride[d];
          if (++at[d] < o.shape[d]) break;
          own -= o.stride[d] * o.shape[d];
          at[d] = 0;
        }
      }
    }
  });
}

void Placement::load(char* scratch, int threads) {
  for (int i = 0; i < count_; ++i) {
    Operand& o = operands_[i];
    if (!o.copied) continue;
    o.at.data = scratch;
    scratch += padded(sizes_.elems()) * o.size;
    if (o.role == Role::input) copy<true>(o, threads);
  }
}

void Placement::store(int threads) const {
  for (int i = 0; i < count_; ++i)
    if (operands_[i].copied && operands_[i].role == Role::output) copy<false>(operands_[i], threads);
}

}  // namespace normkit::channels
