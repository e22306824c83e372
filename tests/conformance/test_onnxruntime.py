"""Hypothesis: the same random models on normkit and on ONNX Runtime, both within the bound of the f64 reference.

So both compute the same definition: axis, epsilon, defaults, broadcasting, optional inputs and outputs. ONNX Runtime is
given the error of its one-pass variance on top; normkit is not.
"""

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx_backend import NormkitBackend
from onnx_models import OPERATORS, Problem
from reference import DTYPES


def run_onnxruntime(problem: Problem):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    model = problem.model().SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, problem.operands())


@st.composite
def problems(draw, operator, types):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = DTYPES[draw(st.sampled_from(types))]
    fused = operator.startswith("Skip")
    batch = draw(hnp.array_shapes(min_dims=1 if fused else 0, max_dims=2 if fused else 3, max_side=5))
    shape = (*batch, draw(st.integers(1, 300)))
    axis = None if fused else draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    normalized = shape[(-1 if axis is None else axis) % len(shape) :]

    def make(dims, shift=0.0):
        return (rng.standard_normal(dims) + shift).astype(dtype)

    def parameter():
        broadcast = tuple(1 if not fused and draw(st.integers(0, 4)) == 0 else d for d in normalized)
        return make(broadcast if fused else broadcast[draw(st.integers(0, len(broadcast) - 1)) :])

    problem = Problem(operator, make(shape, draw(st.sampled_from([0.0, 1.0, -3.0]))), axis=axis)
    _, _, inputs, outputs = OPERATORS[operator]
    if "weight" in inputs:
        problem.weight = parameter()
        problem.epsilon = draw(st.sampled_from([None, 1e-12, 1e-5, 1e-2, 3.0]))
    if "bias" in inputs and draw(st.booleans()):
        problem.bias = parameter()
    if "residual" in inputs:
        problem.residual = make(shape)
    problem.outputs = ("y", *(o for o in outputs[1:] if o and draw(st.booleans())))
    return problem


# What ONNX Runtime has CPU kernels for.
TYPES = {
    "LayerNormalization": ("f32", "f64", "f16"),
    "RMSNormalization": ("f32", "f64", "f16"),
    "LpNormalization": ("f32", "f64"),
    "SimplifiedLayerNormalization": ("f32", "f64", "f16"),
    "SkipLayerNormalization": ("f32", "f16"),
    "SkipSimplifiedLayerNormalization": ("f32", "f16"),
}


@pytest.mark.parametrize("operator", OPERATORS)
@given(st.data())
def test_same_definition(operator, data):
    problem = data.draw(problems(operator, TYPES[operator]))
    problem.check(NormkitBackend.prepare(problem.model()).run([*problem.operands().values()]), "normkit")
    problem.check(run_onnxruntime(problem), "ONNX Runtime", one_pass=True)
