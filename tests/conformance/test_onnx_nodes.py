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
}
MODULES = ("layernormalization", "rmsnormalization", "lpnormalization")


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
    ],
)
def test_what_is_not_computed_is_refused(operator, inputs, attributes, message):
    with pytest.raises(ValueError, match=message):
        OPERATORS[operator](*inputs, **attributes)
