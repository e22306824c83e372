"""ONNX's own node tests of the operators that normkit computes. All of them run."""

import importlib
import re
from unittest import mock

import numpy as np
import pytest
from onnx.backend.test import BackendTest
from onnx_backend import OPERATORS, NormkitBackend

# Without the tests of the operators' expansion into primitive ones, and without p = 1.
PATTERNS = {
    r"test_layer_normalization_(?!.*expanded).*_cpu": 19,
    r"test_rms_normalization_(?!.*expanded).*_cpu": 19,
    r"test_(l2normalization_axis_.|lpnormalization_default)_cpu": 3,
    r"test_batchnorm_(?!.*expanded).*_cpu": 4,
    r"test_instancenorm_(?!.*expanded).*_cpu": 2,
    r"test_group_normalization_(?!.*expanded).*_cpu": 2,
    r"test_mvn_cpu": 1,
}
MODULES = (
    "layernormalization",
    "rmsnormalization",
    "lpnormalization",
    "batch_normalization",
    "instance_normalization",
    "groupnormalization",
    "meanvariancenormalization",
)


def load_model_tests(kind):
    """The cases of these operators only: loading those of all operators takes many seconds."""
    nodes = importlib.import_module("onnx.backend.test.case.node")
    with np.errstate(invalid="ignore"):  # one case divides 0 by 0 to find that it must not
        for module in MODULES:
            importlib.import_module(f"{nodes.__name__}.{module}")
    return nodes._NodeTestCases if kind == "node" else []


with mock.patch("onnx.backend.test.runner.load_model_tests", load_model_tests):
    runner = BackendTest(NormkitBackend, __name__)
for pattern in PATTERNS:
    runner.include(pattern)
Suite = runner.test_cases["OnnxBackendNodeModelTest"]
Suite.__test__ = False  # collected below, without the hundreds that are not included
CASES = sorted(name for name in dir(Suite) if any(re.fullmatch(pattern, name) for pattern in PATTERNS))


def test_every_case_is_there():
    assert {p: sum(bool(re.fullmatch(p, name)) for name in CASES) for p in PATTERNS} == PATTERNS


@pytest.mark.parametrize("case", CASES)
def test_node(case):
    runs = NormkitBackend.runs
    getattr(Suite(case), case)()
    assert NormkitBackend.runs == runs + 1


X, SCALE = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("LayerNormalization", [X, SCALE], {"stash_type": 16}, "stash_type is 16, expected 1"),
        ("RMSNormalization", [X, SCALE], {"stash_type": 10}, "stash_type is 10, expected 1"),
        ("LpNormalization", [X], {"p": 1}, "p is 1, expected 2"),
        ("LayerNormalization", [X, X], {"axis": -1}, "broadcast"),  # a scale per row
        ("RMSNormalization", [X[:, :, :1], np.ones(2, np.float32)], {}, "broadcast"),  # a scale that would widen X
        ("LayerNormalization", [X, SCALE], {"axis": 3}, "axis is 3, expected -3 to 2"),
        (
            "GroupNormalization",
            [X, X[0, :, 0], X[0, :, 0]],
            {"num_groups": 2},
            "groups is 2, expected a divisor of the 3",
        ),
        ("BatchNormalization", [X, SCALE, SCALE, SCALE, SCALE], {}, r"weight has the shape \(4\), expected \(3\)"),
        ("InstanceNormalization", [X[0, 0], SCALE, SCALE], {}, "x has 1 dimensions, expected 2 or more"),
    ],
)
def test_what_is_not_computed_is_refused(operator, inputs, attributes, message):
    with pytest.raises(ValueError, match=message):
        OPERATORS[operator](*inputs, **attributes)


def test_mean_variance_normalization_of_a_constant_is_zero():
    for axes in ((0, 2, 3), (1,), (0, 1, 2, 3)):
        (y,) = OPERATORS["MeanVarianceNormalization"](np.full((2, 3, 4, 5), 7.1, np.float32), axes=axes)
        assert not y.any()


def test_mean_variance_normalization_over_any_axes():
    x = np.random.default_rng(0).normal(3, 2, (2, 3, 4, 5)).astype(np.float32)
    for axes in ((0,), (1, 3), (3, 1), (0, 2, 3), (-1, -2)):
        (y,) = OPERATORS["MeanVarianceNormalization"](x, axes=axes)
        wide = x.astype(np.float64)
        want = (wide - wide.mean(axes, keepdims=True)) / wide.std(axes, keepdims=True)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
