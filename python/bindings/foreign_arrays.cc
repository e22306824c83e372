// Arrays of other libraries: the DLPack protocol (`__dlpack__`), or else the buffer protocol. Both run code of the
// other library, so nothing that they say is trusted.
#include <cstring>
#include <string_view>

#include "operand.h"

namespace normkit::python {
namespace {

bool is_jax(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  const char* text = PyUnicode_Check(module.ptr()) ? PyUnicode_AsUTF8(module.ptr()) : nullptr;
  if (!text) {
    PyErr_Clear();
    return false;
  }
  const std::string_view name = text;
  return name == "jaxlib" || name.starts_with("jaxlib.") || name == "jax" || name.starts_with("jax.");
}

nb::object dlpack_capsule(const char* op, const Operand& o, nb::handle object) {
  const nb::object export_ = nb::getattr(object, "__dlpack__", nb::none());
  nb::object capsule = nb::none();
  try {
    try {
      capsule = export_(nb::arg("max_version") = nb::make_tuple(dlpack::kVersion.major, dlpack::kVersion.minor));
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_TypeError)) throw;
      capsule = export_();  // a producer from before DLPack 1.0
    }
  } catch (nb::python_error& e) {
    e.restore();
    fail_from_python(op, o.name, " cannot be read through DLPack");
  }
  return capsule;
}

View dlpack_view(const char* op, Operand& o, nb::handle object) {
  o.keep = dlpack_capsule(op, o, object);  // the capsule is borrowed, not consumed: it frees the export when it goes
  const dlpack::Tensor* tensor = nullptr;
  uint64_t flags = 0;
  if (PyCapsule_IsValid(o.keep.ptr(), "dltensor_versioned")) {
    const auto* managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(o.keep.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::kVersion.major)
      fail_type(op, o.name, " speaks DLPack ", managed->version.major, ", expected version 1");
    tensor = &managed->tensor;
    flags = managed->flags;
  } else if (PyCapsule_IsValid(o.keep.ptr(), "dltensor")) {
    tensor = &static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(o.keep.ptr(), "dltensor"))->tensor;
  } else {
    fail_type(op, o.name, ".__dlpack__() gave ", shown(o.keep), ", expected an unused DLPack capsule");
  }
  if (o.output && (flags & (dlpack::kReadOnly | dlpack::kIsCopied)))
    fail_value(op, o.name, " is read-only or gave a copy, expected a writable array");
  return view_of(op, o, *tensor);
}

View buffer_view(const char* op, Operand& o) {
  o.keep = nb::steal(PyMemoryView_FromObject(o.object.ptr()));
  if (!o.keep.is_valid()) fail_from_python(op, o.name, " cannot be read through the buffer protocol");
  const Py_buffer& b = *PyMemoryView_GET_BUFFER(o.keep.ptr());
  const char* format = b.format ? b.format : "B";
  const char* code = format + (std::strchr("@=<", format[0]) && format[0] != '\0');  // native and little-endian marks
  DType dtype = DType::none;
  if (std::strcmp(code, "f") == 0) dtype = DType::f32;
  if (std::strcmp(code, "d") == 0) dtype = DType::f64;
  if (std::strcmp(code, "e") == 0) dtype = DType::f16;
  if (dtype == DType::none || b.itemsize != dtype_size(dtype))
    fail_type(op, o.name, " is a buffer with elements '", format, "'", kExpectedTypes);
  if (b.suboffsets) fail_type(op, o.name, " is a buffer of pointers, expected one block of memory");
  if (o.output && b.readonly) fail_value(op, o.name, " is read-only, expected a writable array");
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  return make_view(op, o, b.buf, dtype, b.ndim, reinterpret_cast<const int64_t*>(b.shape),
                   reinterpret_cast<const int64_t*>(b.strides), b.itemsize);
}

}  // namespace

View foreign_view(const char* op, Operand& o) {
  PyTypeObject* type = Py_TYPE(o.object.ptr());
  if (o.output && is_jax(o.object))
    fail_type(op, o.name, " is a JAX array, which cannot be changed; leave it out to get a new array");
  const nb::handle type_object(reinterpret_cast<PyObject*>(type));
  if (PyType_Check(o.object.ptr()) || !nb::hasattr(type_object, "__dlpack__")) {
    if (!PyType_Check(o.object.ptr()) && PyObject_CheckBuffer(o.object.ptr())) return buffer_view(op, o);
    fail_type(op, o.name, " is ", shown(o.object),
              ", expected an array (NumPy, PyTorch, JAX, or anything with DLPack or the buffer protocol)");
  }
  if (!nb::hasattr(type_object, "resolve_neg")) return dlpack_view(op, o, o.object);
  refuse_autograd(op, o);
  // Tensors of a torch before the exchange API: what its export would refuse or ignore is taken off first.
  if (o.output && nb::cast<bool>(o.object.attr("is_neg")()))
    fail_value(op, o.name, " has its negative bit set, expected a plain tensor");
  return dlpack_view(op, o, o.object.attr("detach")().attr("resolve_neg")());
}

}  // namespace normkit::python
