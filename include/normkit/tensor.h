// Element types and views: how a caller describes memory to normkit. The library never owns or allocates tensors.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace normkit {

// Thrown for an operand of a type that the operation does not take; every other caller mistake is a plain
// std::invalid_argument.
struct __attribute__((visibility("default"))) dtype_error : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

enum class DType : uint8_t { none, f32, f64, bf16, f16 };

// Bytes of one element; 0 for DType::none.
constexpr int64_t dtype_size(DType t) {
  constexpr int64_t kSizes[] = {0, 4, 8, 2, 2};
  return kSizes[static_cast<int>(t)];
}
// "f32", "f64", "bf16", "f16", "none".
constexpr const char* dtype_name(DType t) {
  constexpr const char* kNames[] = {"none", "f32", "f64", "bf16", "f16"};
  return kNames[static_cast<int>(t)];
}

// bfloat16 storage: the upper half of an IEEE binary32. Conversion from float rounds to nearest even; NaN becomes the
// canonical quiet NaN 0x7fc0.
struct bf16 {
  uint16_t bits = 0;
  constexpr bf16() = default;
  constexpr explicit bf16(float value) {
    const uint32_t b = std::bit_cast<uint32_t>(value);
    const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t{0x7fc0} : static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  friend constexpr bool operator==(bf16 a, bf16 b) { return float(a) == float(b); }
};

// IEEE binary16 storage. Conversion from float rounds to nearest even, keeps subnormals and overflows to infinity; NaN
// becomes the canonical quiet NaN 0x7e00.
struct f16 {
  uint16_t bits = 0;
  constexpr f16() = default;
  constexpr explicit f16(float value) {
    const uint32_t b = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
    uint32_t r = 0;
    if (a > 0x7f800000u) {
      bits = 0x7e00;
      return;
    }
    if (a >= 0x477ff000u) {  // 65520 and above round to infinity
      r = 0x7c00;
    } else if (a >= 0x38800000u) {  // normal in binary16: rebias the exponent, round 13 bits away
      r = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    } else {  // subnormal: adding 0.5 makes the FPU's own rounding land on multiples of 2^-24
      r = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
    }
    bits = static_cast<uint16_t>(sign | r);
  }
  constexpr operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, a = bits & 0x7fffu;
    if (a >= 0x7c00u)
      return std::bit_cast<float>(sign | 0x7f800000u | ((a & 0x3ffu) << 13) | (a > 0x7c00u ? 0x400000u : 0u));
    if (a >= 0x400u) return std::bit_cast<float>(sign | ((a << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(a) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
  }
  friend constexpr bool operator==(f16 a, f16 b) { return float(a) == float(b); }
};

template <class T>
concept Storage = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bf16> || std::same_as<T, f16>;

template <Storage T>
inline constexpr DType dtype_of = std::same_as<T, float>    ? DType::f32
                                  : std::same_as<T, double> ? DType::f64
                                  : std::same_as<T, bf16>   ? DType::bf16
                                                            : DType::f16;

inline constexpr int kMaxRank = 8;

// A strided tensor in the caller's memory. Strides count elements and may be zero or negative for inputs. A default
// made view is "absent": dtype none, data null. `ConstView` is for inputs (from const data, too), `View` for outputs; View
// converts to ConstView.
//
//   ConstView(ptr, {rows, cols})                 contiguous
//   ConstView(ptr, {rows, cols}, {stride, 1})    strided
//   ConstView(vector)                            one dimension: std::vector, std::array, std::span, ...
//   ConstView(vector, {rows, cols})              the sizes must multiply to vector.size()
//   ConstView(void_ptr, DType::bf16, shape_span, strides_span)    dtype known at run time only
//
// Throws std::invalid_argument: rank over kMaxRank, a negative size, strides of another rank, a range of another size.
template <class Void>
struct BasicView {
  Void* data = nullptr;
  DType dtype = DType::none;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  constexpr BasicView() = default;
  BasicView(Void* p, DType t, std::span<const int64_t> sizes, std::span<const int64_t> steps) : data(p), dtype(t) {
    if (sizes.size() > kMaxRank) fail("rank " + std::to_string(sizes.size()) + ", expected at most 8");
    if (steps.size() != sizes.size())
      fail(std::to_string(steps.size()) + " strides, expected " + std::to_string(sizes.size()));
    rank = static_cast<int>(sizes.size());
    for (int d = 0; d < rank; ++d) {
      if (sizes[d] < 0)
        fail("size " + std::to_string(sizes[d]) + " in dimension " + std::to_string(d) + ", expected 0 or more");
      shape[d] = sizes[d];
      strides[d] = steps[d];
    }
  }
  BasicView(Void* p, DType t, std::span<const int64_t> sizes) : BasicView(p, t, sizes, sizes) { set_contiguous(); }

  template <Storage T>
  BasicView(T* p, std::initializer_list<int64_t> sizes)
    requires std::convertible_to<T*, Void*>
      : BasicView(p, dtype_of<T>, {sizes.begin(), sizes.size()}) {}
  template <Storage T>
  BasicView(const T* p, std::initializer_list<int64_t> sizes)
    requires std::is_const_v<Void>
      : BasicView(p, dtype_of<T>, {sizes.begin(), sizes.size()}) {}
  template <Storage T>
  BasicView(T* p, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> steps)
    requires std::convertible_to<T*, Void*>
      : BasicView(p, dtype_of<T>, {sizes.begin(), sizes.size()}, {steps.begin(), steps.size()}) {}
  template <Storage T>
  BasicView(const T* p, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> steps)
    requires std::is_const_v<Void>
      : BasicView(p, dtype_of<T>, {sizes.begin(), sizes.size()}, {steps.begin(), steps.size()}) {}

  template <std::ranges::contiguous_range R>
    requires Storage<std::ranges::range_value_t<R>> &&
             (std::is_const_v<Void> || !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>)
  BasicView(R&& r)
      : BasicView(std::ranges::data(r), dtype_of<std::ranges::range_value_t<R>>,
                  std::array{static_cast<int64_t>(std::ranges::size(r))}) {}
  template <std::ranges::contiguous_range R>
    requires Storage<std::ranges::range_value_t<R>> &&
             (std::is_const_v<Void> || !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>)
  BasicView(R&& r, std::initializer_list<int64_t> sizes)
      : BasicView(std::ranges::data(r), dtype_of<std::ranges::range_value_t<R>>, {sizes.begin(), sizes.size()}) {
    if (numel() != static_cast<int64_t>(std::ranges::size(r)))
      fail("sizes multiply to " + std::to_string(numel()) + ", expected " + std::to_string(std::ranges::size(r)) +
           " (the elements of the range)");
  }
  // View -> ConstView
  template <class Other>
    requires(std::is_const_v<Void> && !std::is_const_v<Other>)
  constexpr BasicView(const BasicView<Other>& v)
      : data(v.data), dtype(v.dtype), rank(v.rank), shape(v.shape), strides(v.strides) {}

  // True when the caller gave this operand.
  constexpr explicit operator bool() const { return dtype != DType::none; }
  constexpr int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }

 private:
  [[noreturn]] static void fail(const std::string& what) { throw std::invalid_argument("view: " + what); }
  constexpr void set_contiguous() {
    int64_t step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      strides[d] = step;
      step *= shape[d];
    }
  }
};

using View = BasicView<void>;
using ConstView = BasicView<const void>;

// How a call may run. C++ callers own parallelism: one thread unless they ask for more. The result never depends on it.
// At most so many are used, and no more than the processors or 64; fewer where the call is too small for them.
struct Exec {
  int threads = 1;
};

}  // namespace normkit
