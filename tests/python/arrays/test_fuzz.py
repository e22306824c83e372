"""Whatever is passed: a result or a Python exception, never a crash. Random junk for every parameter, and liars."""

import array
import ctypes
import inspect
import random
import re

import jax.numpy as jnp
import ml_dtypes
import normkit
import numpy as np
import pytest
import torch
from arrays.kinds import OPS, DLPackOnly, OldDLPackOnly

FUNCTIONS = [*OPS, *(op + "_backward" for op in OPS)]
PARAMETERS = {
    name: re.findall(r"(\w+): ", getattr(normkit, name).__doc__.split("->")[0]) for name in FUNCTIONS
}  # from the signature, so that a new parameter is fuzzed at once
EXPECTED = (
    TypeError,
    ValueError,
    MemoryError,
    OverflowError,
    BufferError,
    RuntimeError,
    Liar := type("LiarError", (Exception,), {}),
)


class Liars:
    """Objects that claim to be arrays, numbers or strings."""

    class Raises:
        def __dlpack__(self, **_):
            raise Liar("no")

        def __float__(self):
            raise Liar("no")

        __index__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = __eq__ = __float__
        __hash__ = None

    class Unprintable:
        def __dlpack__(self, **_):
            class Silent(Exception):
                def __str__(self):
                    raise Liar("str")

            raise Silent

    class Surrogate:
        def __dlpack__(self, **_):
            raise ValueError("\ud800")

    class NoAttributes:
        def __getattribute__(self, name):
            raise Liar(name)

    class WrongCapsule:
        def __dlpack__(self, **_):
            return torch.Tensor.__dlpack_c_exchange_api__  # a capsule of another name

    class NoCapsule:
        def __dlpack__(self, **_):
            return 17

    class NotCallable:
        __dlpack__ = 3

    class UsedCapsule:
        def __init__(self):
            self.capsule = torch.ones(3).__dlpack__()
            torch.from_dlpack(self.capsule)

        def __dlpack__(self, **_):
            return self.capsule

    class SameCapsuleTwice:
        def __init__(self):
            self.capsule = torch.ones(3).__dlpack__(max_version=(1, 0))

        def __dlpack__(self, **_):
            return self.capsule

    class BorrowedExchange:
        """Carries torch's table of C functions, which would take it for a tensor."""

        __dlpack_c_exchange_api__ = torch.Tensor.__dlpack_c_exchange_api__

    class Interface:
        """Points an array interface at address 8: must not be believed."""

        @property
        def __array_interface__(self):
            return {"shape": (3,), "typestr": "<f4", "data": (8, False), "version": 3}

    class Recursive:
        def __dlpack__(self, **_):
            return self.__dlpack__()

    class Shouts(str):
        def __eq__(self, other):
            raise Liar("eq")

        __hash__ = str.__hash__

    class NotANumber(float):
        def __float__(self):
            raise Liar("float")

    class ModuleLess:
        __module__ = None

        def __dlpack__(self, **_):
            raise Liar("no")


class ResizesOthers:
    """Frees the memory of another operand while it is being read."""

    def __init__(self, victim):
        self.victim, self.own = victim, torch.ones(3)

    def __dlpack__(self, **_):
        self.victim.untyped_storage().resize_(0)
        return self.own.__dlpack__()


class _ManagedTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class Export:
    """A DLPack export made by hand, with any of its fields wrong."""

    def __init__(self, **fields):
        self.memory = (ctypes.c_float * 64)(*range(64))
        self.sizes = (ctypes.c_int64 * 2)(2, 3)
        self.tensor = _ManagedTensor(
            data=ctypes.addressof(self.memory), device=1, id=0, ndim=2, code=2, bits=32, lanes=1,
            shape=ctypes.addressof(self.sizes), strides=None, offset=0, context=None, deleter=None,
        )  # fmt: skip
        for name, value in fields.items():
            if name == "sizes":
                self.sizes[:] = value
            else:
                setattr(self.tensor, name, value)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


WRONG_EXPORTS = {
    "on a GPU": dict(device=2),
    "device 0": dict(device=0),
    "64 dimensions": dict(ndim=64),
    "-1 dimensions": dict(ndim=-1),
    "no data": dict(data=None),
    "no shape": dict(shape=None),
    "two lanes": dict(lanes=2),
    "24 bits": dict(bits=24),
    "unknown code": dict(code=200),
    "negative size": dict(sizes=(2, -3)),
    "2^80 elements": dict(sizes=(2**40, 2**40)),
    "half an element off": dict(offset=2),
}


def test_a_right_export_made_by_hand():
    got = normkit.l2_norm(Export())
    assert np.array_equal(got, normkit.l2_norm(np.arange(6, dtype=np.float32).reshape(2, 3)))
    assert np.array_equal(
        normkit.l2_norm(Export(offset=4)), normkit.l2_norm(np.arange(1, 7, dtype=np.float32).reshape(2, 3))
    )


@pytest.mark.parametrize("case", WRONG_EXPORTS)
def test_wrong_exports(case):
    with pytest.raises((TypeError, ValueError), match="rms_norm: x "):
        normkit.rms_norm(Export(**WRONG_EXPORTS[case]))


def liars():
    return [cls() for name, cls in vars(Liars).items() if inspect.isclass(cls)]


@pytest.mark.parametrize("liar", [name for name, cls in vars(Liars).items() if inspect.isclass(cls)])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_liar_in_every_place(function, liar):
    x, w = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    for parameter in PARAMETERS[function]:
        arguments = {"x": x, "weight": w}
        if function.endswith("backward"):
            arguments["dy"] = x
        arguments[parameter] = getattr(Liars, liar)()
        try:
            getattr(normkit, function)(**arguments)
        except EXPECTED:
            continue
        assert (liar, parameter) in {
            *(("SameCapsuleTwice", p) for p in ("x", "weight", "bias", "dweight", "dbias")),
            ("NotANumber", "eps"), ("NotANumber", "weight_offset"),
        }, f"{function}({parameter}={liar}) was accepted"  # fmt: skip


def test_exceptions_of_the_object_are_the_cause():
    with pytest.raises(TypeError, match="x cannot be read through DLPack") as error:
        normkit.rms_norm(Liars.Raises())
    assert isinstance(error.value.__cause__, Liar)


def test_interrupts_pass_through():
    class Interrupted:
        def __dlpack__(self, **_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        normkit.rms_norm(Interrupted())


def test_memory_that_another_operand_frees_is_not_read():
    victim = torch.ones(4, 3)
    with pytest.raises(TypeError, match="rms_norm: x has no memory"):
        normkit.rms_norm(victim, ResizesOthers(victim))


def junk(rng: random.Random):
    """A random object: often an array that fits nearly, otherwise anything."""
    shape = rng.choice([(), (0,), (1,), (3,), (2, 3), (2, 3), (2, 3), (3, 2), (0, 3), (2, 0), (1, 2, 3), (1,) * 9])
    dtype = rng.choice(["f4", "f4", "f4", "f8", "f2", "i4", "?", "c8", "O", ">f4", "S3", "M8[s]", ml_dtypes.bfloat16])
    makers = [
        lambda: np.zeros(shape, dtype),
        lambda: np.ones((5, *shape), "f4")[::-2].squeeze(),
        lambda: np.broadcast_to(np.float32(1), shape),
        lambda: torch.ones(shape, dtype=rng.choice([torch.float32, torch.float64, torch.bfloat16, torch.int8])),
        lambda: torch.ones(shape, device="meta"),
        lambda: torch.ones(1).expand(2**31, 2**29),
        lambda: torch.ones(6, 4).t()[::2, :3].t(),
        lambda: torch.ones(2, 3).to_sparse(),
        lambda: jnp.ones(shape[:4]),
        lambda: DLPackOnly(torch.ones(shape)),
        lambda: OldDLPackOnly(torch.ones(shape)),
        lambda: memoryview(np.ones(shape or (1,), "f4")),
        lambda: memoryview(b"1234"),
        lambda: array.array("f", [1, 2, 3]),
        lambda: rng.choice(liars()),
        lambda: Export(**rng.choice(list(WRONG_EXPORTS.values()))),
        lambda: rng.choice([None, None, True, False, 0, 1, -1, 2, 2**70, -(2**31), 1e-5, -1.0, float("nan"), 1j]),
        lambda: rng.choice(
            ["once", "before_weight", "inside", "outside", "clamp", "rounded", "unrounded", "", "\ud800"]
        ),
        lambda: rng.choice([(True, True, True), (True, False, False), (), [], {}, object(), type, len, np, Ellipsis]),
    ]
    return rng.choice(makers)()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_junk_in_every_parameter(function):
    rng = random.Random(function)
    accepted = 0
    for _ in range(1500):
        arguments = {p: junk(rng) for p in PARAMETERS[function] if rng.random() < 0.15}
        for name in ("x", "dy") if function.endswith("backward") else ("x",):
            if rng.random() < 0.7 or name not in arguments:
                arguments[name] = np.ones((2, 3), "f4")
        try:
            getattr(normkit, function)(**arguments)
            accepted += 1
        except EXPECTED:
            pass
    assert accepted > 50  # the fuzz gets past the checks


def test_the_parameters_are_those_of_the_signature():
    assert PARAMETERS["rms_norm"][:4] == ["x", "weight", "bias", "residual"]
    assert PARAMETERS["layer_norm_backward"][:5] == ["dy", "x", "weight", "mean", "rstd"]
    assert all(p[-1] == "threads" for p in PARAMETERS.values())
