// torch.Tensor through the DLPack C exchange API: a view costs some tens of nanoseconds and needs no symbol of torch.
#include "operand.h"

namespace normkit::python {
namespace {

// What is known of torch once it was imported. References are kept for the life of the process.
struct Torch {
  nb::handle tensor{};    // torch.Tensor
  nb::handle dispatch{};  // torch.Tensor.__torch_dispatch__: the same object in all plain tensors
  nb::handle is_neg{};
  nb::handle get_num_threads{};
  nb::handle is_grad_enabled{};
  const dlpack::ExchangeApi* api = nullptr;  // null: torch is older than 2.10
};
Torch torch;

const dlpack::ExchangeApi* find_api(nb::handle tensor) {
  const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->version.major > dlpack::kVersion.major) api = api->previous;
  return api && api->version.major == dlpack::kVersion.major && api->borrow ? api : nullptr;
}

// False while nobody has imported torch, or something else goes by its name.
bool find_torch() {
  if (torch.tensor.is_valid()) return true;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (!module) return false;
  const nb::object tensor = nb::getattr(module, "Tensor", nb::none());
  if (!PyType_Check(tensor.ptr())) return false;
  const nb::object dispatch = nb::getattr(tensor, "__torch_dispatch__", nb::none());
  const nb::object is_neg = nb::getattr(tensor, "is_neg", nb::none());
  const nb::object get_num_threads = nb::getattr(module, "get_num_threads", nb::none());
  const nb::object is_grad_enabled = nb::getattr(module, "is_grad_enabled", nb::none());
  if (dispatch.is_none() || is_neg.is_none() || get_num_threads.is_none() || is_grad_enabled.is_none()) return false;
  torch = {tensor.inc_ref(),          dispatch.inc_ref(),        is_neg.inc_ref(),
           get_num_threads.inc_ref(), is_grad_enabled.inc_ref(), find_api(tensor)};
  return true;
}

// The last plain tensor types that were seen (Tensor, Parameter, ...).
std::array<PyTypeObject*, 4> plain_types{};
size_t next_plain = 0;

// The exchange ignores the negative bit, a lazy minus (conjugates are complex, and refused). Only `z.conj().imag` sets
// it: every second float of complex numbers, so a tensor with a stride of 1 need not be asked, which costs 0.1 us.
bool has_neg_bit(nb::handle tensor, const View& view) {
  for (int d = 0; d < view.rank; ++d)
    if (view.strides[d] == 1 && view.shape[d] > 1) return false;
  PyObject* args[] = {tensor.ptr()};
  const nb::object answer = nb::steal(PyObject_Vectorcall(torch.is_neg.ptr(), args, 1, nullptr));
  if (!answer.is_valid()) throw nb::python_error();
  return answer.ptr() == Py_True;
}

}  // namespace

bool is_torch(const char* op, const Operand& o) {
  PyTypeObject* type = Py_TYPE(o.object.ptr());
  for (PyTypeObject* plain : plain_types)
    if (type == plain) return true;
  if (!find_torch() || !PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(torch.tensor.ptr()))) return false;
  if (!nb::getattr(nb::handle(type), "__torch_dispatch__").is(torch.dispatch))
    fail_type(op, o.name, " is a ", type->tp_name,
              ", a kind of torch tensor with operators of its own, expected a plain tensor");
  if (!torch.api) return false;
  Py_INCREF(type);
  Py_XDECREF(plain_types[next_plain]);
  plain_types[next_plain] = type;
  next_plain = (next_plain + 1) % plain_types.size();
  return true;
}

void refuse_autograd(const char* op, const Operand& o) {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  const nb::object requires_grad = nb::steal(PyObject_GetAttr(o.object.ptr(), name));
  if (!requires_grad.is_valid()) throw nb::python_error();
  if (requires_grad.ptr() == Py_True && torch.is_grad_enabled().ptr() == Py_True)
    fail_value(op, o.name,
               " requires grad, which is not recorded here, expected torch.no_grad(), a detached tensor, or ",
               "the functions of normkit.torch");
}

View torch_view(const char* op, Operand& o) {
  refuse_autograd(op, o);
  dlpack::Tensor t{};
  if (torch.api->borrow(o.object.ptr(), &t) != 0) fail_from_python(op, o.name, " is not a plain CPU tensor");
  View view = view_of(op, o, t);
  if (has_neg_bit(o.object, view)) {
    if (o.output) fail_value(op, o.name, " has its negative bit set, expected a plain tensor");
    o.keep = o.object.attr("resolve_neg")();
    if (torch.api->borrow(o.keep.ptr(), &t) != 0) throw nb::python_error();
    view = view_of(op, o, t);
  }
  return view;
}

Result torch_result(const char* op, DType dtype, std::span<const int64_t> shape) {
  dlpack::Tensor prototype{};
  prototype.device = {dlpack::kCPU, 0};
  prototype.dtype = {static_cast<uint8_t>(dtype == DType::bf16 ? dlpack::kBfloat : dlpack::kFloat),
                     static_cast<uint8_t>(8 * dtype_size(dtype)), 1};
  prototype.ndim = static_cast<int32_t>(shape.size());
  prototype.shape = const_cast<int64_t*>(shape.data());
  std::string error;
  dlpack::ManagedTensorVersioned* managed = nullptr;
  const int status = torch.api->allocate(
      &prototype, &managed, &error,
      [](void* context, const char*, const char* message) { *static_cast<std::string*>(context) = message; });
  if (status != 0) {
    PyErr_Clear();
    error = text(op, ": no memory for the result: ", error.substr(0, error.find('\n')));
    PyErr_SetString(PyExc_MemoryError, error.c_str());
    throw nb::python_error();
  }
  void* object = nullptr;
  if (torch.api->object_from_managed(managed, &object) != 0) throw nb::python_error();
  Result result{nb::steal(static_cast<PyObject*>(object)), {}};
  dlpack::Tensor t{};
  if (torch.api->borrow(object, &t) != 0) throw nb::python_error();
  result.view = view_of(op, {.name = "result", .object = result.object, .output = true}, t);
  return result;
}

Result torch_transposed(const char* op, const Result& r, std::span<const int64_t> axes) {
  nb::list order;
  for (int64_t axis : axes) order.append(axis);
  Result result{r.object.attr("permute")(order), {}};
  dlpack::Tensor t{};
  if (torch.api->borrow(result.object.ptr(), &t) != 0) throw nb::python_error();
  result.view = view_of(op, {.name = "result", .object = result.object, .output = true}, t);
  return result;
}

int torch_threads() { return nb::cast<int>(torch.get_num_threads()); }

}  // namespace normkit::python
