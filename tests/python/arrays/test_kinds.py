"""Every kind of array in, the caller's kind out: the same bits as NumPy, nothing copied."""

import array
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import normkit
import numpy as np
import pytest
import torch
from arrays.kinds import EVERY_KIND_AND_TYPE, KINDS, OPS, DLPackOnly, OldDLPackOnly, random, same_bits, to_jax, to_torch
from reference import DTYPES


def operands(name, shape=(3, 65)):
    rng = np.random.default_rng(7)
    dtype = DTYPES[name]
    return [random(rng, s, dtype) for s in (shape, shape[-1:], shape[-1:], shape, shape)]


@pytest.mark.parametrize(("kind", "name"), EVERY_KIND_AND_TYPE)
@pytest.mark.parametrize("op", OPS)
def test_forward_returns_the_kind_of_x_with_the_bits_of_numpy(op, kind, name):
    make, result, _ = KINDS[kind]
    x, w, b, r, _ = operands(name)
    call = getattr(normkit, op)
    with jax.enable_x64():
        got = call(*map(make, (x, w, b)), residual=make(r), return_stats=True)
    want = call(x, w, b, residual=r, return_stats=True)
    for a, e in zip(got, want, strict=True):
        assert isinstance(a, result) and not isinstance(a, torch.nn.Parameter)
        assert same_bits(a, e)


@pytest.mark.parametrize(("kind", "name"), EVERY_KIND_AND_TYPE)
@pytest.mark.parametrize("op", OPS)
def test_backward_returns_the_kind_of_x_with_the_bits_of_numpy(op, kind, name):
    make, result, _ = KINDS[kind]
    x, w, _, r, dy = operands(name)
    call = getattr(normkit, op + "_backward")
    with jax.enable_x64():
        got = call(make(dy), make(x), make(w), residual=make(r))
    for a, e in zip(got, call(dy, x, w, residual=r), strict=True):
        assert isinstance(a, result)
        assert same_bits(a, e)


WRITABLE = [(k, n) for k, n in EVERY_KIND_AND_TYPE if k != "jax"]


@pytest.mark.parametrize(("kind", "name"), WRITABLE)
def test_outputs_are_written_in_place_and_returned(kind, name):
    make = KINDS[kind][0]
    x, w, b, r, dy = operands(name)
    out, residual_out = np.empty_like(x), np.empty_like(x)
    first, second = make(out), make(residual_out)
    got = normkit.layer_norm(x, w, b, residual=r, out=first, residual_out=second)
    assert got[0] is first and got[1] is second
    want = normkit.layer_norm(x, w, b, residual=r)
    assert same_bits(out, want[0]) and same_bits(residual_out, want[1])
    dx, dweight, dbias = np.empty_like(x), np.empty_like(w), np.empty_like(b)
    given = [make(a) for a in (dx, dweight, dbias)]
    got = normkit.layer_norm_backward(dy, x, w, dx=given[0], dweight=given[1], dbias=given[2])
    assert all(a is b for a, b in zip(got, given, strict=True))
    for a, e in zip((dx, dweight, dbias), normkit.layer_norm_backward(dy, x, w), strict=True):
        assert same_bits(a, e)


@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_mix_and_x_decides(kind, other):
    x, w, b, _, _ = operands("f32")
    got = normkit.layer_norm(KINDS[kind][0](x), KINDS[other][0](w), b)
    assert isinstance(got, KINDS[kind][1])
    assert same_bits(got, normkit.layer_norm(x, w, b))


@pytest.mark.parametrize("kind", ["torch", "jax", "dlpack"])
def test_bfloat16_of_one_library_with_numpy_of_another(kind):
    x, w, b, _, _ = operands("bf16")
    want = normkit.layer_norm(x, w, b)
    assert same_bits(normkit.layer_norm(x, KINDS[kind][0](w), b), want)
    assert same_bits(normkit.layer_norm(KINDS[kind][0](x), w, b), want)


def test_inputs_are_not_changed_or_copied():
    x = np.ones((4, 1 << 16), np.float32)
    before = x.tobytes()
    normkit.rms_norm(x)
    assert x.tobytes() == before
    read_only = np.broadcast_to(np.float32(2), (3, 5))
    assert not read_only.flags.writeable
    assert np.array_equal(normkit.rms_norm(read_only, eps=0.0), np.ones((3, 5), np.float32))


def test_numpy_subclasses_and_buffers_give_plain_arrays():
    x = np.float32([[3, 4]])
    for given in (x.view(np.recarray), memoryview(x), array.array("f", [3, 4])):
        got = normkit.l2_norm(given)
        assert type(got) is np.ndarray
        assert np.array_equal(got.ravel(), np.float32([0.6, 0.8]))
    out = array.array("f", [0, 0])
    assert normkit.l2_norm(x[0], out=out) is out
    assert np.array_equal(out, np.float32([0.6, 0.8]))


def test_memory_mapped_files(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(2, 3))
    x[:] = 2
    normkit.rms_norm(x, out=x, eps=0.0)
    x.flush()
    assert np.array_equal(np.fromfile(tmp_path / "x", np.float32), np.ones(6, np.float32))


def test_torch_tensors_that_require_grad_are_refused_while_torch_records():
    x, weight = torch.ones(2, 3, requires_grad=True), torch.nn.Parameter(torch.ones(3))
    plain = torch.ones(2, 3)
    for name, call in {
        "x": lambda: normkit.rms_norm(x * 2),
        "weight": lambda: normkit.rms_norm(plain, weight),
        "out": lambda: normkit.rms_norm(plain, out=x),
        "dy": lambda: normkit.rms_norm_backward(x, plain),
    }.items():
        with pytest.raises(ValueError, match=rf"{name} requires grad, .* expected .* normkit\.torch"):
            call()
    assert x._version == 0
    with torch.no_grad():
        y = normkit.rms_norm(x * 2, weight)
    assert not y.requires_grad and y.grad_fn is None


def test_the_negative_bit_is_resolved():
    z = torch.complex(torch.randn(4, 8), torch.randn(4, 8))
    x = z.conj().imag
    assert x.is_neg()
    assert same_bits(normkit.layer_norm(x), normkit.layer_norm(x.resolve_neg()))
    row = torch.complex(torch.ones(8, 1), torch.randn(8, 1)).conj().imag
    assert same_bits(normkit.layer_norm(row, axis=0), normkit.layer_norm(row.resolve_neg(), axis=0))
    with pytest.raises(ValueError, match="rms_norm: out has its negative bit set"):
        normkit.rms_norm(x.resolve_neg(), out=x)


def test_torch_subclasses_without_own_operators_are_tensors():
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(2, 5).as_subclass(Tagged)
    assert type(normkit.rms_norm(x)) is torch.Tensor


def test_tensors_of_other_threads_and_views_of_dead_tensors():
    x = torch.randn(6, 10)[1:5, ::2]  # the tensor it was cut from is gone
    assert same_bits(normkit.rms_norm(x), normkit.rms_norm(x.contiguous()))


def test_jax_statistics_without_x64_are_float32():
    y, rstd = normkit.rms_norm(jnp.ones((2, 3)), return_stats=True)
    assert y.dtype == rstd.dtype == jnp.float32


def test_jax_results_are_on_the_device_of_x():
    x = to_jax(np.ones((2, 3), np.float32))
    assert normkit.rms_norm(x).devices() == x.devices()


def test_results_outlive_the_inputs_and_each_other():
    y, h = normkit.rms_norm(to_torch(np.ones((300, 500), np.float32)), residual=torch.ones(300, 500))
    del y
    assert h.eq(2).all()
    got = normkit.rms_norm(DLPackOnly(torch.full((300, 500), 2.0)), eps=0.0)
    assert np.all(got == 1)
    assert got.flags.owndata and got.flags.c_contiguous


class Namespace:
    """An array of a library that follows the array API standard, and its namespace."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __array_namespace__(self):
        return Namespace

    @staticmethod
    def from_dlpack(other):
        return Namespace(torch.from_dlpack(other))


def test_libraries_of_the_array_api_get_their_own_arrays_back():
    got = normkit.rms_norm(Namespace(torch.full((2, 3), 5.0)), eps=0.0)
    assert isinstance(got, Namespace)
    assert got.tensor.eq(1).all()


OLD_TORCH = """
import torch
del torch.Tensor.__dlpack_c_exchange_api__
import normkit
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    x = torch.arange(12.0).reshape(3, 4).to(dtype).requires_grad_()
    try:
        normkit.rms_norm(x)
        raise SystemExit("accepted a tensor that requires grad")
    except ValueError as e:
        assert "x requires grad" in str(e), e
    with torch.no_grad():
        y, rstd = normkit.rms_norm(x, torch.nn.Parameter(torch.ones(4, dtype=dtype)), return_stats=True)
    assert type(y) is torch.Tensor and y.dtype == dtype and rstd.dtype == torch.float64
    want = torch.nn.functional.rms_norm(x.detach().double(), (4,), eps=1e-5)
    assert torch.allclose(y.double(), want, rtol=1e-2, atol=0)
    out = torch.empty(3, 4, dtype=dtype)
    assert normkit.rms_norm(x.detach(), out=out) is out and torch.equal(out, y)
x = torch.complex(torch.randn(4, 8), torch.randn(4, 8)).conj().imag
assert torch.equal(normkit.rms_norm(x), normkit.rms_norm(x.resolve_neg()))
for bad in (torch.ones(2, 3, device="meta"), torch.ones(2, 3).to_sparse(), torch.ones(2, dtype=torch.complex64)):
    try:
        normkit.rms_norm(bad)
        raise SystemExit(f"accepted {bad}")
    except TypeError as e:
        assert str(e).startswith("rms_norm: x "), e
print("good")
"""


def test_torch_before_the_exchange_api():
    run = subprocess.run([sys.executable, "-c", OLD_TORCH], capture_output=True, text=True)
    assert run.stdout == "good\n", run.stderr


def test_without_torch_and_jax_nothing_is_imported():
    code = (
        "import sys, numpy, normkit\n"
        "normkit.rms_norm(numpy.ones(3)); normkit.rms_norm(memoryview(numpy.ones(3)))\n"
        "print([m for m in ('torch', 'jax', 'ml_dtypes') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_module_that_only_has_torchs_name_is_no_harm():
    code = (
        "import sys, types, numpy, normkit\n"
        "sys.modules['torch'] = types.SimpleNamespace(Tensor=3)\n"
        "print(normkit.rms_norm(memoryview(numpy.ones(3)), eps=0.0))\n"
        "sys.modules['torch'] = types.SimpleNamespace(Tensor=type('Tensor', (), {}))\n"
        "print(normkit.rms_norm(memoryview(numpy.ones(3)), eps=0.0))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[1. 1. 1.]\n" * 2, run.stderr


def test_ml_dtypes_bfloat16_is_known_by_its_name():
    assert normkit.rms_norm(np.ones((2, 3), ml_dtypes.bfloat16), eps=0.0).dtype == ml_dtypes.bfloat16
    assert OldDLPackOnly(torch.ones(3)).__dlpack__() is not None
