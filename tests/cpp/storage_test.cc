// The 16-bit storage types, exhaustively, and the kernels' own conversions against them; views.
#include <gtest/gtest.h>

#include <array>
#include <span>

#include "run.h"

namespace normkit::test {
namespace {

// Value of the bits by the definition of the format: p fraction bits, exponent bias b.
double value_of(uint32_t bits, int p, int b) {
  const int exponent = static_cast<int>(bits >> p & ((1u << (15 - p)) - 1)), top = (1 << (15 - p)) - 1;
  const double fraction = std::ldexp(bits & ((1u << p) - 1), -p), sign = bits & 0x8000u ? -1 : 1;
  if (exponent == top) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - b) : std::ldexp(1 + fraction, exponent - b));
}

template <class T>
struct Format;
template <>
struct Format<bf16> {
  static constexpr int p = 7, b = 127;
  static constexpr uint16_t quiet_nan = 0x7fc0;
};
template <>
struct Format<f16> {
  static constexpr int p = 10, b = 15;
  static constexpr uint16_t quiet_nan = 0x7e00;
};

// Values of f32 around every rounding border of the format, with the bits that they round to.
template <class T>
struct Borders {
  std::vector<float> value;
  std::vector<uint16_t> bits;

  void add(float v, uint32_t b) {
    value.push_back(v), bits.push_back(static_cast<uint16_t>(b));
    value.push_back(-v), bits.push_back(static_cast<uint16_t>(b | 0x8000u));
  }
  Borders() {
    constexpr int p = Format<T>::p, b = Format<T>::b;
    const uint32_t infinity = ((1u << (15 - p)) - 1) << p;
    for (uint32_t low = 0; low < infinity; ++low) {
      // Above the largest finite value the border lies where the next one would be.
      const double step = value_of(low, p, b) - (low ? value_of(low - 1, p, b) : 0);
      const double up = low + 1 < infinity ? value_of(low + 1, p, b) : value_of(low, p, b) + step;
      const float middle = static_cast<float>(value_of(low, p, b) + (up - value_of(low, p, b)) / 2);
      add(static_cast<float>(value_of(low, p, b)), low);
      add(std::nextafter(middle, 0.0f), low);
      add(middle, low % 2 ? low + 1 : low);
      add(std::nextafter(middle, INFINITY), low + 1);
    }
    add(INFINITY, infinity);
    add(std::numeric_limits<float>::max(), infinity);
    add(std::numeric_limits<float>::denorm_min(), 0);
  }
};

template <class T>
class SixteenBit : public testing::Test {};
using Types = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(SixteenBit, Types);

TYPED_TEST(SixteenBit, EveryValueWidensExactly) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    TypeParam t;
    t.bits = static_cast<uint16_t>(bits);
    const double expected = value_of(bits, Format<TypeParam>::p, Format<TypeParam>::b);
    const float got = t;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_EQ(TypeParam(got).bits, Format<TypeParam>::quiet_nan);
    } else {
      ASSERT_EQ(got, expected) << bits;
      ASSERT_EQ(std::signbit(got), bits >= 0x8000) << bits;
      ASSERT_EQ(TypeParam(got).bits, bits);
    }
  }
}

TYPED_TEST(SixteenBit, RoundsToNearestEvenAtEveryBorder) {
  const Borders<TypeParam> borders;
  for (size_t i = 0; i < borders.value.size(); ++i)
    ASSERT_EQ(TypeParam(borders.value[i]).bits, borders.bits[i]) << borders.value[i];
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0xffffffffu, 0x7fffffffu})
    ASSERT_EQ(TypeParam(std::bit_cast<float>(nan)).bits, Format<TypeParam>::quiet_nan);
}

TYPED_TEST(SixteenBit, ConvertsAtCompileTime) {
  static_assert(float(TypeParam(1.5f)) == 1.5f);
  static_assert(TypeParam(2.0f) == TypeParam(2.0f));
  static_assert(sizeof(TypeParam) == 2);
}

// -0 + residual is the residual itself, so that residual_out shows one conversion and nothing else.
template <class In, class Out>
std::vector<Out> through_the_kernels(const std::vector<In>& values, bool values_are_x) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<Out> out(values.size());
  std::vector<float> f32_zeros(values.size(), -0.0f), y(values.size());
  if constexpr (std::is_same_v<Out, float>) {
    rms_norm({.x = ConstView(values, {1, n}),
              .residual = ConstView(f32_zeros, {1, n}),
              .y = View(y, {1, n}),
              .residual_out = View(out, {1, n})});
  } else {
    const std::vector<Out> zeros(values.size(), Out(-0.0f));
    rms_norm({.x = ConstView(zeros, {1, n}),
              .residual = ConstView(values, {1, n}),
              .y = View(y, {1, n}),
              .residual_out = View(out, {1, n})});
  }
  EXPECT_TRUE(values_are_x == (std::is_same_v<Out, float>));
  return out;
}

TYPED_TEST(SixteenBit, KernelsConvertLikeTheStorageTypeOnEveryTarget) {
  std::vector<TypeParam> all(65536);
  for (uint32_t bits = 0; bits < 65536; ++bits) all[bits].bits = static_cast<uint16_t>(bits);
  const Borders<TypeParam> borders;
  for (const std::string& name : targets()) {
    const OnTarget on(name);
    const std::vector<float> wide = through_the_kernels<TypeParam, float>(all, true);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(float(all[i]))) {
        ASSERT_TRUE(std::isnan(wide[i])) << name << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(float(all[i]))) << name << " " << i;
      }
    }
    const std::vector<TypeParam> narrow = through_the_kernels<float, TypeParam>(borders.value, false);
    for (size_t i = 0; i < narrow.size(); ++i)
      ASSERT_EQ(narrow[i].bits, borders.bits[i]) << name << " " << borders.value[i];
  }
}

TEST(Views, AreMadeInOneExpression) {
  std::vector<float> v(12);
  std::array<double, 6> a{};
  const std::span<float> s(v);
  EXPECT_EQ(View(v).rank, 1);
  EXPECT_EQ(View(v).shape[0], 12);
  EXPECT_EQ(View(v, {3, 4}).strides[0], 4);
  EXPECT_EQ(ConstView(a, {2, 3}).dtype, DType::f64);
  EXPECT_EQ(View(s, {2, 2, 3}).numel(), 12);
  EXPECT_EQ(View(v.data(), {3, 2}, {4, 1}).strides[0], 4);
  EXPECT_EQ(ConstView(View(v)).data, v.data());
  EXPECT_EQ(ConstView(static_cast<const std::vector<float>&>(v)).numel(), 12);
  EXPECT_FALSE(View());
  EXPECT_TRUE(View(v));
  EXPECT_EQ(View(v.data(), {}).numel(), 1);
  EXPECT_FALSE((std::is_constructible_v<View, const std::vector<float>&>));  // outputs need writable memory
  EXPECT_FALSE((std::is_constructible_v<View, ConstView>));
}

TEST(Views, RefuseWhatCannotBe) {
  std::vector<float> v(12);
  EXPECT_THROW(View(v, {3, 5}), std::invalid_argument);
  EXPECT_THROW(View(v.data(), {-1, 4}), std::invalid_argument);
  EXPECT_THROW(View(v.data(), {3, 4}, {1}), std::invalid_argument);
  EXPECT_THROW(View(v.data(), {1, 1, 1, 1, 1, 1, 1, 1, 1}), std::invalid_argument);
  try {
    View(v, {3, 5});
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "view: sizes multiply to 15, expected 12 (the elements of the range)");
  }
}

TEST(Targets, AreNamedAndRefused) {
  ASSERT_FALSE(targets().empty());
  EXPECT_EQ(target(), targets().front());
  EXPECT_THROW(OnTarget("mmx"), std::invalid_argument);
  EXPECT_GT(cache_bytes(), 0);
  EXPECT_STRNE(version(), "");
}

}  // namespace
}  // namespace normkit::test
