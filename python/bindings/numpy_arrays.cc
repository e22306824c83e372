// NumPy arrays, through NumPy's own C API (loaded once, at import).
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <cstring>

#include "operand.h"

namespace normkit::python {
namespace {

// ml_dtypes.bfloat16 has a type number that NumPy gives out at run time; 0 (bool's) until one was seen.
int bfloat16_number = 0;

DType dtype_of_array(PyArrayObject* a) {
  const int number = PyArray_TYPE(a);
  if (!PyArray_ISNOTSWAPPED(a)) return DType::none;
  if (number == NPY_FLOAT) return DType::f32;
  if (number == NPY_DOUBLE) return DType::f64;
  if (number == NPY_HALF) return DType::f16;
  if (!PyTypeNum_ISUSERDEF(number)) return DType::none;
  if (number != bfloat16_number) {
    const char* name = PyArray_DESCR(a)->typeobj->tp_name;
    const char* dot = std::strrchr(name, '.');
    if (std::strcmp(dot ? dot + 1 : name, "bfloat16") != 0 || PyArray_ITEMSIZE(a) != 2) return DType::none;
    bfloat16_number = number;
  }
  return DType::bf16;
}

PyArray_Descr* descr_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return PyArray_DescrFromType(NPY_FLOAT);
    case DType::f64: return PyArray_DescrFromType(NPY_DOUBLE);
    case DType::f16: return PyArray_DescrFromType(NPY_HALF);
    default: break;
  }
  if (bfloat16_number == 0) {  // the caller's bfloat16 came from another library
    const nb::object type = nb::module_::import_("ml_dtypes").attr("bfloat16");
    PyArray_Descr* descr = nullptr;
    if (!PyArray_DescrConverter(type.ptr(), &descr)) throw nb::python_error();
    bfloat16_number = descr->type_num;
    return descr;
  }
  return PyArray_DescrFromType(bfloat16_number);
}

}  // namespace

void import_numpy() {
  if (_import_array() < 0) throw nb::python_error();
}

bool is_numpy(const char* op, const Operand& o) {
  if (PyArray_CheckExact(o.object.ptr())) return true;
  if (!PyArray_Check(o.object.ptr())) return false;
  if (PyObject_HasAttrString(o.object.ptr(), "mask"))
    fail_type(op, o.name, " is a masked array, expected one without a mask (it would be ignored)");
  return true;
}

View numpy_view(const char* op, const Operand& o) {
  auto* a = reinterpret_cast<PyArrayObject*>(o.object.ptr());
  const DType dtype = dtype_of_array(a);
  if (dtype == DType::none)
    fail_type(op, o.name, " has type ", str_of(reinterpret_cast<PyObject*>(PyArray_DESCR(a))), kExpectedTypes);
  if (o.output && !PyArray_ISWRITEABLE(a)) fail_value(op, o.name, " is read-only, expected a writable array");
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  return make_view(op, o, PyArray_DATA(a), dtype, PyArray_NDIM(a), reinterpret_cast<const int64_t*>(PyArray_DIMS(a)),
                   reinterpret_cast<const int64_t*>(PyArray_STRIDES(a)), dtype_size(dtype));
}

Result numpy_result(const char* op, DType dtype, std::span<const int64_t> shape) {
  PyObject* array = PyArray_NewFromDescr(&PyArray_Type, descr_of(dtype), static_cast<int>(shape.size()),
                                         reinterpret_cast<const npy_intp*>(shape.data()), nullptr, nullptr, 0, nullptr);
  if (!array) throw nb::python_error();
  Result result{nb::steal(array), {}};
  result.view = numpy_view(op, {.name = "result", .object = result.object, .output = true});
  return result;
}

Result numpy_transposed(const char* op, const Result& r, std::span<const int64_t> axes) {
  nb::list order;
  for (int64_t axis : axes) order.append(axis);
  Result result{r.object.attr("transpose")(order), {}};
  result.view = numpy_view(op, {.name = "result", .object = result.object, .output = true});
  return result;
}

}  // namespace normkit::python
