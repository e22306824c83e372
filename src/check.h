// Argument checks: every caller mistake is found here, before a byte is written. Messages read
// "rms_norm: weight has 4095 elements, expected 4096 (normalized dimensions of x)".
#pragma once

#include <initializer_list>
#include <string>

#include "normkit/norm.h"

namespace normkit {

[[noreturn]] void fail(const char* op, const std::string& what);

std::string shape_text(const ConstView& v, int first_dim = 0);

// Given; data not null where there are elements.
void check_present(const char* op, const char* name, const ConstView& v);
// The same for an operand that may be absent: false if it is.
bool check_optional(const char* op, const char* name, const ConstView& v);

// v's type is one of the two (f32 and x's, say).
void check_dtype(const char* op, const char* name, const ConstView& v, DType a, DType b);
void check_dtype(const char* op, const char* name, const ConstView& v, std::initializer_list<DType> allowed,
                 const char* expected);

void check_same_shape(const char* op, const char* name, const ConstView& v, const ConstView& x);
// weight, bias and their gradients: the shape of x's dims [axis, rank), one dimension of as many elements, or one
// element.
void check_parameter_shape(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis);
// mean and rstd: the shape of x's dims [0, axis), optionally followed by ones.
void check_stat_shape(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis);

// Resolves a negative axis; throws for one outside x's rank and for a normalized axis without elements.
int check_axis(const char* op, const ConstView& x, int axis);
void check_finite(const char* op, const char* name, double value, bool non_negative);
void check_threads(const char* op, const Exec& exec);

template <class Enum>
void check_enum(const char* op, const char* name, Enum value, Enum last, const char* expected) {
  if (static_cast<unsigned>(value) <= static_cast<unsigned>(last)) return;
  fail(op, std::string(name) + " is " + std::to_string(static_cast<unsigned>(value)) + ", expected " + expected);
}

// An operand of the overlap check.
struct Named {
  const char* name;
  const ConstView& view;
};
// No two elements of an output share memory, and outputs overlap no other operand, except that an output may be exactly
// (data, type, shape, strides) one of `same_ok`.
void check_overlap(const char* op, std::initializer_list<Named> outputs, std::initializer_list<Named> same_ok,
                   std::initializer_list<Named> others);

}  // namespace normkit
