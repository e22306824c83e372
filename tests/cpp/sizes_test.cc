// More than 2^31 elements: offsets of 64 bits everywhere. Tested with strides, not with memory: only the pages that
// hold elements are ever touched.
// pytorch/pytorch#181555, #184826, NVIDIA/apex#1845, PaddlePaddle/Paddle#79528: offsets of 32 bits overflowed.
#include <sys/mman.h>

#include "expect.h"

namespace normkit::test {
namespace {

// Address space without memory behind it until it is written.
class Reserved {
 public:
  explicit Reserved(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reserved() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// Copies [rows, cols] elements to or from memory with these strides.
void copy_strided(char* memory, Buffer& packed, const Case& c, int64_t row_stride, int64_t col_stride, bool out) {
  const int64_t size = dtype_size(packed.dtype());
  for (int64_t i = 0; i < packed.size(); ++i) {
    char* far = memory + (i / c.cols * row_stride + i % c.cols * col_stride) * size;
    char* near = packed.data() + i * size;
    std::memcpy(out ? far : near, out ? near : far, static_cast<size_t>(size));
  }
}

void check_strides(const Case& c, int64_t row_stride, int64_t col_stride) {
  const Inputs in = make_inputs(c);
  const Outputs expected = run(c, in);
  const int64_t span = ((c.rows - 1) * row_stride + (c.cols - 1) * col_stride + 1) * dtype_size(c.x);
  const Reserved x(span), y(span), dx(span);
  ASSERT_TRUE(x.ok() && y.ok() && dx.ok()) << "cannot reserve address space";
  Inputs copy = in;
  copy_strided(x.data(), copy.x, c, row_stride, col_stride, true);
  Outputs out;
  NormArgs f = forward_args(c, in, out);
  NormGradArgs b = backward_args(c, in, out);
  const std::array<int64_t, 2> shape = {c.rows, c.cols}, strides = {row_stride, col_stride};
  f.x = b.x = ConstView(x.data(), c.x, shape, strides);
  f.y = View(y.data(), c.x, shape, strides);
  b.dx = View(dx.data(), c.x, shape, strides);
  call(c.op, f);
  call(c.op, b);
  copy_strided(y.data(), out.y, c, row_stride, col_stride, false);
  copy_strided(dx.data(), out.dx, c, row_stride, col_stride, false);
  EXPECT_EQ(difference(out, expected), "");
}

TEST(Sizes, RowsFurtherApartThan32Bits) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Case c{.op = Op::layer, .x = type, .weight = type, .rows = 3, .cols = 200};
    check_strides(c, (int64_t{1} << 31) + 5, 1);
    check_strides(c, (int64_t{1} << 32) + 4096, 1);
  }
}

TEST(Sizes, ColumnsFurtherApartThan32Bits) {
  const Case c{.op = Op::rms, .x = DType::f16, .weight = DType::f16, .rows = 2, .cols = 70};
  check_strides(c, 3, (int64_t{1} << 31) / 16 + 3);
}

// A batch of more than 2^31 elements, all of them the same few: every row must count.
TEST(Sizes, MoreElementsThan31Bits) {
  constexpr int64_t rows = (int64_t{1} << 19) + 1, cols = 4097;
  const std::vector<float> dy(cols, 1.0f), x(cols, 2.0f);
  std::vector<float> dbias(cols);
  const std::array<int64_t, 2> shape = {rows, cols}, strides = {0, 1};
  layer_norm_backward({.dy = ConstView(dy.data(), DType::f32, shape, strides),
                       .x = ConstView(x.data(), DType::f32, shape, strides),
                       .dbias = View(dbias)},
                      {.threads = 2});
  for (float v : dbias) ASSERT_EQ(v, static_cast<float>(rows));
}

}  // namespace
}  // namespace normkit::test
