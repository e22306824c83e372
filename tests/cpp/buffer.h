// Memory for tests: an owned run of elements of any storage type, read and written as double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "normkit/normkit.h"

namespace normkit::test {

// Rounding unit (half an ulp of 1) and half the smallest subnormal of a storage type.
constexpr double unit_roundoff(DType t) {
  return t == DType::f64 ? 0x1p-53 : t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8;
}
constexpr double half_smallest(DType t) {
  return t == DType::f64   ? std::numeric_limits<double>::denorm_min()  // half of it is not a double
         : t == DType::f32 ? 0x1p-150
         : t == DType::f16 ? 0x1p-25
                           : 0x1p-134;
}
constexpr double largest(DType t) {
  return t == DType::f64   ? std::numeric_limits<double>::max()
         : t == DType::f32 ? double(std::numeric_limits<float>::max())
         : t == DType::f16 ? 65504.0
                           : 0x1.fep127;
}
// Kernels compute f64 x in f64 and everything else in f32.
constexpr DType compute_type(DType x) { return x == DType::f64 ? DType::f64 : DType::f32; }

// v rounded to type t by way of f32 for the 16-bit types, as every kernel does.
inline double round_to(DType t, double v) {
  switch (t) {
    case DType::f64: return v;
    case DType::f32: return static_cast<float>(v);
    case DType::bf16: return static_cast<float>(bf16(static_cast<float>(v)));
    case DType::f16: return static_cast<float>(f16(static_cast<float>(v)));
    case DType::none: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// `size` elements of type t, starting `shift` elements behind a 64-byte border. The allocation ends with the last
// element, so that AddressSanitizer sees the first byte read or written too far.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType t, int64_t size, int64_t shift = 0) : dtype_(t), size_(size), shift_(shift) {
    bytes_ = static_cast<char*>(::operator new(allocation(), std::align_val_t{64}));
    std::memset(bytes_, 0xa5, allocation());
  }
  Buffer(const Buffer& other) : Buffer(other.dtype_, other.size_, other.shift_) {
    if (other.bytes_) std::memcpy(bytes_, other.bytes_, allocation());
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() { ::operator delete(bytes_, std::align_val_t{64}); }

  explicit operator bool() const { return dtype_ != DType::none; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  int64_t byte_size() const { return size_ * dtype_size(dtype_); }
  char* data() { return bytes_ + shift_ * dtype_size(dtype_); }
  const char* data() const { return bytes_ + shift_ * dtype_size(dtype_); }

  double get(int64_t i) const {
    switch (dtype_) {
      case DType::f64: return load<double>(i);
      case DType::f32: return load<float>(i);
      case DType::bf16: return static_cast<float>(load<bf16>(i));
      case DType::f16: return static_cast<float>(load<f16>(i));
      case DType::none: break;
    }
    return 0;
  }
  void set(int64_t i, double v) {
    switch (dtype_) {
      case DType::f64: return store(i, v);
      case DType::f32: return store(i, static_cast<float>(v));
      case DType::bf16: return store(i, bf16(static_cast<float>(v)));
      case DType::f16: return store(i, f16(static_cast<float>(v)));
      case DType::none: return;
    }
  }
  void fill(double v) {
    for (int64_t i = 0; i < size_; ++i) set(i, v);
  }

  // Equal bits, except that any NaN equals any NaN.
  friend bool operator==(const Buffer& a, const Buffer& b) {
    return a.dtype_ == b.dtype_ && a.size_ == b.size_ && a.first_difference(b) < 0;
  }
  // Index of the first element with other bits, -1 if there is none.
  int64_t first_difference(const Buffer& b) const {
    if (byte_size() == 0 || std::memcmp(data(), b.data(), static_cast<size_t>(byte_size())) == 0) return -1;
    const int64_t width = dtype_size(dtype_);
    for (int64_t i = 0; i < size_; ++i) {
      const bool same = std::memcmp(data() + i * width, b.data() + i * width, static_cast<size_t>(width)) == 0;
      if (!same && !(std::isnan(get(i)) && std::isnan(b.get(i)))) return i;
    }
    return -1;
  }

 private:
  template <class T>
  T load(int64_t i) const {
    T v;
    std::memcpy(&v, data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  }
  template <class T>
  void store(int64_t i, T v) {
    std::memcpy(data() + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
  size_t allocation() const { return static_cast<size_t>((size_ + shift_) * dtype_size(dtype_)); }
  void swap(Buffer& other) {
    std::swap(dtype_, other.dtype_);
    std::swap(size_, other.size_);
    std::swap(shift_, other.shift_);
    std::swap(bytes_, other.bytes_);
  }

  DType dtype_ = DType::none;
  int64_t size_ = 0, shift_ = 0;
  char* bytes_ = nullptr;
};

// Contiguous views of a buffer; absent for an absent buffer.
inline View view(Buffer& b, std::initializer_list<int64_t> shape) {
  return b ? View(b.data(), b.dtype(), {shape.begin(), shape.size()}) : View();
}
inline ConstView view(const Buffer& b, std::initializer_list<int64_t> shape) {
  return b ? ConstView(b.data(), b.dtype(), {shape.begin(), shape.size()}) : ConstView();
}
template <class V, class B>
V strided(B& b, int64_t offset, std::initializer_list<int64_t> shape, std::initializer_list<int64_t> strides) {
  return V(b.data() + offset * dtype_size(b.dtype()), b.dtype(), {shape.begin(), shape.size()},
           {strides.begin(), strides.size()});
}

}  // namespace normkit::test
