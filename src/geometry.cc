#include "geometry.h"

#include <cstring>
#include <memory>
#include <new>

namespace normkit {
namespace {

void copy_element(char* to, const char* from, int64_t size) {
  switch (size) {
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    default: std::memcpy(to, from, 8);
  }
}

bool run_of(int rank, const int64_t* shape, const int64_t* stride, int64_t size) {
  int64_t expected = size;
  for (int d = rank - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (stride[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

struct AlignedDelete {
  void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
};

}  // namespace

char* workspace(size_t bytes) {
  thread_local std::unique_ptr<char, AlignedDelete> memory;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(static_cast<char*>(::operator new(bytes, std::align_val_t{64})));
    capacity = bytes;
  }
  return memory.get();
}

Geometry::Geometry(const ConstView& x, int axis, std::initializer_list<Slot> slots) {
  batch_rank_ = axis;
  inner_rank_ = x.rank - axis;
  for (int d = 0; d < x.rank; ++d) (d < axis ? batch_shape_[d] : inner_shape_[d - axis]) = x.shape[d];
  for (int d = 0; d < axis; ++d) rows_ *= batch_shape_[d];
  for (int d = 0; d < inner_rank_; ++d) cols_ *= inner_shape_[d];
  for (const Slot& s : slots) {
    Tensor& t = tensors_[count_++];
    if (s.view) place(s, x, axis, t);
    all_runs_ = all_runs_ && t.run;
  }
  collapse_batch();
}

void Geometry::place(const Slot& slot, const ConstView& x, int axis, Tensor& t) {
  const ConstView& v = slot.view;
  t.data = static_cast<char*>(const_cast<void*>(v.data));
  t.size = dtype_size(v.dtype);
  t.role = slot.role;
  bytes_ += rows_ * t.size * (t.role == Role::stat ? 1 : cols_);
  for (int d = 0; d < axis; ++d) t.batch[d] = v.strides[d] * t.size;
  if (t.role == Role::stat) return;
  for (int d = axis; d < x.rank; ++d) t.inner[d - axis] = v.strides[d] * t.size;
  t.run = run_of(inner_rank_, inner_shape_, t.inner, t.size);
}

bool Geometry::mergeable(int outer, int inner) const {
  for (int i = 0; i < count_; ++i)
    if (tensors_[i].data && tensors_[i].batch[outer] != tensors_[i].batch[inner] * batch_shape_[inner]) return false;
  return true;
}

// Drops batch dims of one element and joins neighbours that all operands step through alike.
void Geometry::collapse_batch() {
  const auto move = [&](int to, int from) {
    batch_shape_[to] = batch_shape_[from];
    for (int i = 0; i < count_; ++i)
      if (tensors_[i].data) tensors_[i].batch[to] = tensors_[i].batch[from];
  };
  int kept = 0;
  for (int d = 0; d < batch_rank_; ++d) {
    if (batch_shape_[d] == 1) continue;
    if (kept > 0 && mergeable(kept - 1, d)) {
      const int64_t outer = batch_shape_[kept - 1];
      move(kept - 1, d);
      batch_shape_[kept - 1] *= outer;
    } else {
      move(kept++, d);
    }
  }
  batch_rank_ = kept;
}

int64_t Geometry::row_offset(const Tensor& t, int64_t row) const {
  int64_t offset = 0;
  for (int d = batch_rank_ - 1; d >= 0; --d) {
    offset += row % batch_shape_[d] * t.batch[d];
    row /= batch_shape_[d];
  }
  return offset;
}

template <class F>
void Geometry::each_element(const Tensor& t, char* row, F&& f) const {
  int64_t at[kMaxRank] = {};
  for (int64_t c = 0; c < cols_; ++c) {
    f(row, c);
    for (int d = inner_rank_ - 1; d >= 0; --d) {
      row += t.inner[d];
      if (++at[d] < inner_shape_[d]) break;
      row -= t.inner[d] * inner_shape_[d];
      at[d] = 0;
    }
  }
}

char* Geometry::start(const Tensor& t, int64_t row, char* scratch) const {
  if (!t.data) return nullptr;
  char* p = t.data + row_offset(t, row);
  if (t.run) return p;
  if (t.role == Role::input)
    each_element(t, p, [&](const char* e, int64_t c) { copy_element(scratch + c * t.size, e, t.size); });
  return scratch;
}

void Geometry::finish(const Tensor& t, int64_t row, char* run) const {
  if (!t.data || t.run || t.role != Role::output) return;
  each_element(t, t.data + row_offset(t, row), [&](char* e, int64_t c) { copy_element(e, run + c * t.size, t.size); });
}

bool is_run(const ConstView& v, int64_t cols) {
  int64_t bytes[kMaxRank];
  for (int d = 0; d < v.rank; ++d) bytes[d] = v.strides[d] * dtype_size(v.dtype);
  return v.numel() == cols && run_of(v.rank, v.shape.data(), bytes, dtype_size(v.dtype));
}

int64_t element_offset(const ConstView& v, int64_t index) {
  int64_t offset = 0;
  for (int d = v.rank - 1; d >= 0; --d) {
    offset += index % v.shape[d] * v.strides[d];
    index /= v.shape[d];
  }
  return offset;
}

void gather_parameter(const ConstView& v, int64_t cols, char* run) {
  const int64_t size = dtype_size(v.dtype);
  const bool one = v.numel() == 1;
  for (int64_t c = 0; c < cols; ++c)
    copy_element(run + c * size, static_cast<const char*>(v.data) + element_offset(v, one ? 0 : c) * size, size);
}

}  // namespace normkit
