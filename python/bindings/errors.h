// Errors of the Python door: the operation first, then what was given and what was expected.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

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

// A message of the C++ engine in the terms of the Python signature.
inline std::string in_python_words(const std::string& message) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"y", "out"}, {"f32", "float32"}, {"f64", "float64"}, {"f16", "float16"}, {"bf16", "bfloat16"}};
  std::string result;
  for (size_t at = 0; at <= message.size();) {
    const size_t end = std::min(message.find_first_of(" ,", at), message.size());
    std::string_view word(message.data() + at, end - at);
    for (const auto& [cpp, python] : kWords)
      if (word == cpp) word = python;
    result += word;
    if (end < message.size()) result += message[end];
    at = end + 1;
  }
  return result;
}

// str(value), or "" where that raises or cannot be encoded. Keeps a Python error that is set.
inline std::string str_of(nb::handle value) {
  const nb::error_scope scope;
  PyObject* str = PyObject_Str(value.ptr());
  const char* utf8 = str ? PyUnicode_AsUTF8(str) : nullptr;
  const std::string result = utf8 ? utf8 : "";
  Py_XDECREF(str);
  PyErr_Clear();
  return result;
}

// Replaces the Python error that is set by TypeError("op: parts: first line of the error"), chained to it.
template <class... Parts>
[[noreturn]] void fail_from_python(const char* op, const Parts&... parts) {
  nb::python_error error;                            // takes the error that is set
  if (!error.matches(PyExc_Exception)) throw error;  // KeyboardInterrupt and its like pass
  const std::string cause = str_of(error.value());
  const std::string what = text(op, ": ", parts..., ": ", cause.substr(0, cause.find('\n')));  // torch adds a C++ stack
  nb::raise_from(error, PyExc_TypeError, "%s", what.c_str());
}

// The value itself where it is short, or else "a list": what a message shows of an argument.
inline std::string shown(nb::handle value) {
  PyObject* p = value.ptr();
  if (PyUnicode_CheckExact(p) || PyLong_CheckExact(p) || PyFloat_CheckExact(p) || PyBool_Check(p) || p == Py_None) {
    const std::string plain = str_of(value);  // empty as well for an integer of thousands of digits
    const bool quoted = PyUnicode_CheckExact(p), empty = quoted && PyUnicode_GetLength(p) == 0;
    if (plain.empty() == empty && plain.size() <= 60) return quoted ? text("'", plain, "'") : plain;
  }
  return text("a ", Py_TYPE(p)->tp_name);
}

}  // namespace normkit::python
