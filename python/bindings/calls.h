// Pieces that the functions of every family share: their table, operands that must or must not be given, the gradients that
// are wanted.
#pragma once

#include <array>

#include "run.h"

namespace normkit::python {

template <class Args>
struct Op {
  const char* name;
  void (*engine)(const Args&, const Exec&);
  bool centred;  // has a mean
  double eps;
};

inline std::span<const int64_t> shape_of(const View& v) { return {v.shape.data(), static_cast<size_t>(v.rank)}; }

inline void require(const char* op, const Operand& o) {
  if (!o) fail_type(op, o.name, " is None, expected an array");
}

inline void refuse_unused(const char* op, const Operand& o, bool used, const char* needs) {
  if (o && !used) fail_value(op, o.name, " was given, expected None without ", needs);
}

// The three members of output_mask: which of dx, dweight, dbias are wanted.
inline std::array<bool, 3> mask_of(const char* op, nb::handle mask) {
  if (!PyTuple_CheckExact(mask.ptr()))
    fail_type(op, "output_mask is ", shown(mask), ", expected a tuple of three bools");
  if (PyTuple_GET_SIZE(mask.ptr()) != 3)
    fail_value(op, "output_mask has ", PyTuple_GET_SIZE(mask.ptr()), " members, expected three bools");
  std::array<bool, 3> wanted;
  for (size_t i = 0; i < 3; ++i) wanted[i] = flag(op, "output_mask", PyTuple_GET_ITEM(mask.ptr(), Py_ssize_t(i)));
  if (!wanted[0] && !wanted[1] && !wanted[2])
    fail_value(op, "output_mask is (False, False, False), expected at least one True");
  return wanted;
}

// (dx, dweight, dbias), None for those that are not there.
inline nb::object finish_gradients(const Operand* const (&given)[3], const Operand& x, Result (&results)[3]) {
  nb::object tuple[3] = {nb::none(), nb::none(), nb::none()};
  for (int i = 0; i < 3; ++i)
    if (results[i].object.is_valid()) tuple[i] = finish(*given[i], x, results[i]);
  return nb::make_tuple(tuple[0], tuple[1], tuple[2]);
}

// Outputs that output_mask leaves out, and sums with nothing to add to.
inline void refuse_unwanted(const char* op, const std::array<bool, 3>& wanted, const Operand& dx,
                            const Operand& dweight, const Operand& dbias, bool accumulate) {
  refuse_unused(op, dx, wanted[0], "output_mask[0]");
  refuse_unused(op, dweight, wanted[1], "output_mask[1]");
  refuse_unused(op, dbias, wanted[2], "output_mask[2]");
  if (accumulate && ((wanted[1] && !dweight) || (wanted[2] && !dbias)))
    fail_value(op, "accumulate is True, expected the array ", wanted[1] && !dweight ? "dweight" : "dbias",
               " to add to, or False in output_mask");
}

// channels.cc
void def_channel_norms(nb::module_& m);

}  // namespace normkit::python
