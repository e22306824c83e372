// The plain options of a call: numbers, flags and names, each with an error that says what was given and expected.
#pragma once

#include <iterator>

#include "operand.h"

namespace normkit::python {

inline double number(const char* op, const char* name, nb::handle value) {
  if (PyFloat_CheckExact(value.ptr())) return PyFloat_AS_DOUBLE(value.ptr());
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred()) fail_from_python(op, name, " is ", shown(value), ", expected a number");
  return result;
}

inline int integer(const char* op, const char* name, nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) fail_from_python(op, name, " is ", shown(value), ", expected an integer");
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || result != static_cast<int>(result))
    fail_value(op, name, " is ", shown(value), ", expected an integer of 32 bits");
  return static_cast<int>(result);
}

inline bool flag(const char* op, const char* name, nb::handle value) {
  if (!PyBool_Check(value.ptr())) fail_type(op, name, " is ", shown(value), ", expected True or False");
  return value.ptr() == Py_True;
}

// One of `names`, as the enumerator of the same position.
template <class Enum, size_t N>
Enum choice(const char* op, const char* name, nb::handle value, const char* const (&names)[N]) {
  if (PyUnicode_Check(value.ptr()))
    for (size_t i = 0; i < N; ++i)
      if (PyUnicode_CompareWithASCIIString(value.ptr(), names[i]) == 0) return static_cast<Enum>(i);
  std::string expected = names[0];
  for (size_t i = 1; i < N; ++i) expected += text(i + 1 < N ? "', '" : "' or '", names[i]);
  if (!PyUnicode_Check(value.ptr())) fail_type(op, name, " is ", shown(value), ", expected '", expected, "'");
  fail_value(op, name, " is ", shown(value), ", expected '", expected, "'");
}

inline constexpr const char* kRoundings[] = {"once", "before_weight"};
inline constexpr const char* kEpsModes[] = {"inside", "outside", "clamp"};
inline constexpr const char* kResidualStats[] = {"rounded", "unrounded"};

// The options that forward and backward share, as the caller gave them.
struct OptionHandles {
  nb::handle eps, axis, weight_offset, rounding, eps_mode, residual_stats;
};

template <class Args>
void read_options(const char* op, const OptionHandles& given, Args& args) {
  args.eps = number(op, "eps", given.eps);
  args.axis = integer(op, "axis", given.axis);
  args.weight_offset = number(op, "weight_offset", given.weight_offset);
  args.rounding = choice<decltype(args.rounding)>(op, "rounding", given.rounding, kRoundings);
  args.eps_mode = choice<decltype(args.eps_mode)>(op, "eps_mode", given.eps_mode, kEpsModes);
  args.residual_stats =
      choice<decltype(args.residual_stats)>(op, "residual_stats", given.residual_stats, kResidualStats);
}

}  // namespace normkit::python
