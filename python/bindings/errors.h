// Errors of the Python door: the operation first, then what was given and what was expected.
#pragma once

#include <nanobind/nanobind.h>

#include <concepts>
#include <string>

namespace normkit::python {

namespace nb = nanobind;

// text("x has ", 3, " dimensions")
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string result;
  const auto add = [&result](const auto& part) {
    if constexpr (std::integral<std::remove_cvref_t<decltype(part)>>)
      result += std::to_string(part);
    else
      result += part;
  };
  (add(parts), ...);
  return result;
}

template <class... Parts>
[[noreturn]] void fail_type(const char* op, const Parts&... parts) {
  throw nb::type_error(text(op, ": ", parts...).c_str());
}

template <class... Parts>
[[noreturn]] void fail_value(const char* op, const Parts&... parts) {
  throw nb::value_error(text(op, ": ", parts...).c_str());
}

// Replaces the Python error that is set by TypeError("op: parts: first line of the error"), chained to it.
template <class... Parts>
[[noreturn]] void fail_from_python(const char* op, const Parts&... parts) {
  nb::python_error error;                            // takes the error that is set
  if (!error.matches(PyExc_Exception)) throw error;  // KeyboardInterrupt and its like pass
  const std::string cause = nb::str(error.value()).c_str();
  const std::string what = text(op, ": ", parts..., ": ", cause.substr(0, cause.find('\n')));  // torch adds a C++ stack
  nb::raise_from(error, PyExc_TypeError, "%s", what.c_str());
}

// The value itself where it is short, or else "a list": what a message shows of an argument.
inline std::string shown(nb::handle value) {
  const nb::error_scope scope;  // keeps an error that is set
  PyObject* p = value.ptr();
  if (PyUnicode_CheckExact(p) || PyLong_CheckExact(p) || PyFloat_CheckExact(p) || PyBool_Check(p) || p == Py_None) {
    PyObject* repr = PyObject_Repr(p);  // fails for an integer of many digits
    const char* utf8 = repr ? PyUnicode_AsUTF8(repr) : nullptr;
    const std::string result = utf8 ? utf8 : "";
    Py_XDECREF(repr);
    PyErr_Clear();
    if (!result.empty() && result.size() <= 60) return result;
  }
  return text("a ", Py_TYPE(p)->tp_name);
}

}  // namespace normkit::python
