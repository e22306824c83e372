// Python arrays <-> views. An Operand is one array argument of a call; results are new arrays of the caller's kind.
#pragma once

#include <span>

#include "dlpack.h"
#include "errors.h"
#include "normkit/tensor.h"

namespace normkit::python {

// How an array is read, and what the results of a call with such an x are.
enum class Kind : uint8_t {
  absent,   // None
  numpy,    // numpy.ndarray, read through NumPy's C API
  torch,    // torch.Tensor (2.10 and newer), through the DLPack C exchange API
  foreign,  // everything else: JAX, older torch, other DLPack producers, the buffer protocol
};

struct Operand {
  const char* name;   // as in the signature
  nb::handle object;  // borrowed from the caller
  bool output = false;
  Kind kind = Kind::absent;
  View view{};
  nb::object keep{};  // owns what `view` points to, where the object itself does not

  explicit operator bool() const { return kind != Kind::absent; }
};

// Fills kind and view of every operand. Throws TypeError or ValueError with operation, operand, got and expected.
// Objects that run Python code to be read go first: what that code does to the others is then seen, not dangling.
void load(const char* op, std::span<Operand> operands);

// A result: the array that the call returns and its memory.
struct Result {
  nb::object object{};
  View view{};
};

// The given output itself, or else a new contiguous array: a torch tensor when `like` is one, otherwise NumPy.
Result make_result(const char* op, const Operand& given, const Operand& like, DType dtype,
                   std::span<const int64_t> shape);
// The same in the memory layout of `like`, where that is dense: channels last in, channels last out.
Result make_result_like(const char* op, const Operand& given, const Operand& like, DType dtype);
// After the computation: turns NumPy arrays that were made for a foreign `like` into its kind.
nb::object finish(const Operand& given, const Operand& like, Result& result);

inline constexpr const char* kExpectedTypes = ", expected float32, float64, float16 or bfloat16";

// The checks that all kinds share: rank, whole-element strides (given in bytes or elements), overflow, memory,
// alignment.
View make_view(const char* op, const Operand& o, void* data, DType dtype, int64_t rank, const int64_t* shape,
               const int64_t* strides, int64_t stride_unit);
View view_of(const char* op, const Operand& o, const dlpack::Tensor& t);

// numpy_arrays.cc
void import_numpy();
bool is_numpy(const char* op, const Operand& o);  // throws for masked arrays
View numpy_view(const char* op, const Operand& o);
Result numpy_result(const char* op, DType dtype, std::span<const int64_t> shape);
Result numpy_transposed(const char* op, const Result& r, std::span<const int64_t> axes);

// torch_arrays.cc
// True for tensors that the exchange API reads. False: not a tensor, or an older torch. Throws for subclasses with
// their own operators (fake, distributed, nested, masked tensors).
bool is_torch(const char* op, const Operand& o);
// Throws for a tensor that requires grad while torch records: the gradient would be lost without a word.
void refuse_autograd(const char* op, const Operand& o);
View torch_view(const char* op, Operand& o);
Result torch_result(const char* op, DType dtype, std::span<const int64_t> shape);
Result torch_transposed(const char* op, const Result& r, std::span<const int64_t> axes);
int torch_threads();

// foreign_arrays.cc
View foreign_view(const char* op, Operand& o);

}  // namespace normkit::python
