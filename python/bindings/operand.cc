#include "operand.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace normkit::python {

View make_view(const char* op, const Operand& o, void* data, DType dtype, int64_t rank, const int64_t* shape,
               const int64_t* strides, int64_t stride_unit) {
  if (rank < 0 || rank > kMaxRank) fail_value(op, o.name, " has ", rank, " dimensions, expected at most ", kMaxRank);
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(rank);
  int64_t count = 1, step = 1;
  bool too_many = false, empty = false;  // sizes come from the caller: a product may overflow
  for (int64_t d = rank - 1; d >= 0; --d) {
    if (shape[d] < 0) fail_value(op, o.name, " has a dimension of size ", shape[d], ", expected 0 or more");
    empty |= shape[d] == 0;
    too_many |= __builtin_mul_overflow(count, shape[d], &count);
    const int64_t stride = strides ? strides[d] : step * stride_unit;
    if (stride % stride_unit != 0)
      fail_value(op, o.name, " has a stride of ", stride, " bytes, expected a multiple of its element's ", stride_unit,
                 " (pass a copy)");
    view.shape[d] = shape[d];
    view.strides[d] = stride / stride_unit;
    too_many |= __builtin_mul_overflow(step, shape[d], &step);
  }
  if (empty) return view;
  if (too_many) fail_value(op, o.name, " has 2^63 elements or more");
  if (!data) fail_type(op, o.name, " has no memory that can be read (a meta, fake or freed tensor?)");
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_size(dtype)) != 0)
    fail_value(op, o.name, " is not aligned to its elements, expected a multiple of ", dtype_size(dtype),
               " bytes (pass a copy)");
  return view;
}

View view_of(const char* op, const Operand& o, const dlpack::Tensor& t) {
  const auto [code, bits, lanes] = t.dtype;
  if (t.device.type != dlpack::kCPU && t.device.type != dlpack::kCUDAHost && t.device.type != dlpack::kROCMHost)
    fail_type(op, o.name, " is on DLPack device type ", t.device.type, ", expected the CPU");
  DType dtype = DType::none;
  if (code == dlpack::kFloat && lanes == 1)
    dtype = bits == 32 ? DType::f32 : bits == 64 ? DType::f64 : bits == 16 ? DType::f16 : DType::none;
  if (code == dlpack::kBfloat && lanes == 1 && bits == 16) dtype = DType::bf16;
  if (dtype == DType::none) {
    static constexpr const char* kCodes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    const std::string name = code < std::size(kCodes) ? kCodes[code] : text("DLPack code ", code, " of bits ");
    fail_type(op, o.name, " has type ", name, bits, lanes == 1 ? std::string() : text("x", lanes), kExpectedTypes);
  }
  if (t.ndim > 0 && !t.shape) fail_type(op, o.name, " has a DLPack export without a shape");
  char* data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  return make_view(op, o, data, dtype, t.ndim, t.shape, t.strides, 1);
}

void load(const char* op, std::span<Operand> operands) {
  bool borrow = false;
  for (Operand& o : operands) {
    if (o.object.is_none()) continue;
    o.kind = is_numpy(op, o) ? Kind::numpy : is_torch(op, o) ? Kind::torch : Kind::foreign;
    if (o.kind == Kind::foreign)
      o.view = foreign_view(op, o);
    else
      borrow = true;
  }
  if (!borrow) return;
  for (Operand& o : operands) {
    if (o.kind == Kind::numpy) o.view = numpy_view(op, o);
    if (o.kind == Kind::torch) o.view = torch_view(op, o);
  }
}

// Fresh memory of 4 MB and more is asked for in huge pages: a page fault per 2 MB in place of one per 4 KB. Measured: a
// norm into a fresh torch tensor of 64 MB takes a third of the time. NumPy does the same for its own arrays.
static void prefer_huge_pages(const View& view) {
  constexpr uintptr_t kPage = 4096;
  constexpr int64_t kLarge = 4 << 20;
  const int64_t bytes = view.numel() * dtype_size(view.dtype);
  if (bytes < kLarge) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(view.data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(bytes)) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // advice only: a refusal changes nothing
}

Result make_result(const char* op, const Operand& given, const Operand& like, DType dtype,
                   std::span<const int64_t> shape) {
  if (given) return {nb::borrow(given.object), given.view};
  if (like.kind != Kind::torch) return numpy_result(op, dtype, shape);
  Result result = torch_result(op, dtype, shape);
  prefer_huge_pages(result.view);
  return result;
}

namespace {

// The dimensions of a view by falling stride.
std::array<int64_t, kMaxRank> order_of(const View& v) {
  std::array<int64_t, kMaxRank> order{};
  std::iota(order.begin(), order.end(), 0);
  const auto stride = [&](int64_t d) { return v.strides[static_cast<size_t>(d)]; };
  std::stable_sort(order.begin(), order.begin() + v.rank, [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
  return order;
}

// Whether the elements fill their memory without gaps, in an order of the dimensions that is not the contiguous one. A
// dimension of one element takes part in neither.
bool dense_permuted(const View& v, const std::array<int64_t, kMaxRank>& order) {
  int64_t step = 1, inner = kMaxRank;
  bool permuted = false;
  for (int i = v.rank - 1; i >= 0; --i) {
    const size_t d = static_cast<size_t>(order[static_cast<size_t>(i)]);
    if (v.shape[d] == 1) continue;
    if (v.strides[d] != step) return false;
    permuted |= order[static_cast<size_t>(i)] > inner;
    inner = order[static_cast<size_t>(i)];
    step *= v.shape[d];
  }
  return permuted && v.numel() > 0;
}

}  // namespace

Result make_result_like(const char* op, const Operand& given, const Operand& like, DType dtype) {
  const View& v = like.view;
  const std::span<const int64_t> shape(v.shape.data(), static_cast<size_t>(v.rank));
  const std::array<int64_t, kMaxRank> order = order_of(v);
  if (given || like.kind == Kind::foreign || !dense_permuted(v, order))
    return make_result(op, given, like, dtype, shape);
  std::array<int64_t, kMaxRank> sizes{}, axes{};
  for (size_t i = 0; i < shape.size(); ++i) {
    sizes[i] = shape[static_cast<size_t>(order[i])];
    axes[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  const Result made = make_result(op, given, like, dtype, std::span<const int64_t>(sizes.data(), shape.size()));
  const std::span<const int64_t> to(axes.data(), shape.size());
  return like.kind == Kind::torch ? torch_transposed(op, made, to) : numpy_transposed(op, made, to);
}

nb::object finish(const Operand& given, const Operand& like, Result& result) {
  if (given || like.kind != Kind::foreign || !result.object.is_valid()) return std::move(result.object);
  return nb::module_::import_("normkit._results").attr("like")(result.object, like.object);
}

}  // namespace normkit::python
