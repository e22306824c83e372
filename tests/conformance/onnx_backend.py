"""A backend in ONNX's sense: models of one normalization operator, run on normkit's arrays API.

Operators: LayerNormalization (opset 17), RMSNormalization (23), BatchNormalization (15), InstanceNormalization (6),
GroupNormalization (18 and 21), MeanVarianceNormalization (13) and LpNormalization with p = 2 of ONNX, and from ONNX
Runtime SimplifiedLayerNormalization, SkipLayerNormalization and SkipSimplifiedLayerNormalization (without the input
bias, a third summand). Whatever else a model asks for raises an error; nothing is ignored.

ONNX says that the normalized value is cast to X's type before scale and bias apply. In float32 and float64 that changes
nothing; 16-bit results are rounded once here, as ONNX Runtime does.
"""

import normkit
import numpy as np
import onnx
from onnx import TensorProto
from onnx.backend.base import Backend, BackendRep

EPSILON, SKIP_EPSILON, MOMENTUM = (float(np.float32(e)) for e in (1e-5, 1e-12, 0.9))  # attributes are float32


def _parameter(value, x, axis):
    """scale or B, which need only broadcast to the normalized dimensions, as a view of their shape."""
    if value is None:
        return None
    shape = x.shape[axis:] if axis < 0 else x.shape[axis % x.ndim :]
    extra = max(value.ndim - len(shape), 0)
    if any(d != 1 for d in value.shape[:extra]):
        raise ValueError(f"a parameter of shape {value.shape} does not broadcast to the normalized dimensions {shape}")
    return np.broadcast_to(value.reshape(value.shape[extra:]), shape)


def _statistic(value, x):
    """A saved statistic as ONNX returns it: float32, the normalized dimensions kept as ones."""
    return value.astype(np.float32).reshape(value.shape + (1,) * (x.ndim - value.ndim))


def _check_stash_type(operator, stash_type):
    if stash_type != TensorProto.FLOAT:
        raise ValueError(f"{operator}: stash_type is {stash_type}, expected {TensorProto.FLOAT} (float)")


def layer_normalization(x, scale, bias=None, *, axis=-1, epsilon=EPSILON, stash_type=1):
    _check_stash_type("LayerNormalization", stash_type)
    scale, bias = _parameter(scale, x, axis), _parameter(bias, x, axis)
    y, mean, rstd = normkit.layer_norm(x, scale, bias, axis=axis, eps=epsilon, return_stats=True)
    return y, _statistic(mean, x), _statistic(rstd, x)


def rms_normalization(x, scale, *, axis=-1, epsilon=EPSILON, stash_type=1):
    _check_stash_type("RMSNormalization", stash_type)
    y = np.empty(x.shape, scale.dtype)  # Y has the type of scale
    return (normkit.rms_norm(x, _parameter(scale, x, axis), axis=axis, eps=epsilon, out=y),)


def lp_normalization(x, *, axis=-1, p=2):
    if p != 2:
        raise ValueError(f"LpNormalization: p is {p}, expected 2")
    y = np.empty_like(x)
    normkit.l2_norm(np.moveaxis(x, axis, -1), eps=0.0, out=np.moveaxis(y, axis, -1))
    return (y,)


def batch_normalization(x, scale, bias, mean, var, *, epsilon=EPSILON, momentum=MOMENTUM, training_mode=0):
    if not training_mode:
        y = normkit.batch_norm(x, scale, bias, running_mean=mean, running_var=var, training=False, eps=epsilon)
        return (y,)
    mean, var = mean.copy(), var.copy()  # ONNX returns new ones
    y = normkit.batch_norm(
        x, scale, bias, running_mean=mean, running_var=var, momentum=momentum, running_update="keras", eps=epsilon
    )
    return y, mean, var


def instance_normalization(x, scale, bias, *, epsilon=EPSILON):
    return (normkit.instance_norm(x, scale, bias, eps=epsilon),)


def group_normalization(x, scale, bias, *, num_groups, epsilon=EPSILON, stash_type=1):
    _check_stash_type("GroupNormalization", stash_type)
    if scale.size == num_groups != x.shape[1]:  # opset 18: per group
        scale, bias = (np.repeat(p, x.shape[1] // num_groups) for p in (scale, bias))
    return (normkit.group_norm(x, num_groups, scale, bias, eps=epsilon),)


def mean_variance_normalization(x, *, axes=(0, 2, 3)):
    """ONNX divides by the deviation as it is: 0/0 for constant input, which is 0 here."""
    y = np.empty_like(x)
    last = range(-len(axes), 0)
    normkit.layer_norm(np.moveaxis(x, axes, last), axis=-len(axes), eps=0.0, out=np.moveaxis(y, axes, last))
    return (y,)


def simplified_layer_normalization(x, scale, *, axis=-1, epsilon=EPSILON, stash_type=1):
    _check_stash_type("SimplifiedLayerNormalization", stash_type)
    y, rstd = normkit.rms_norm(x, _parameter(scale, x, axis), axis=axis, eps=epsilon, return_stats=True)
    return y, _statistic(rstd, x)


def skip_layer_normalization(x, skip, gamma, beta=None, *, epsilon=SKIP_EPSILON):
    y, h, mean, rstd = normkit.layer_norm(
        x, gamma, beta, residual=skip, eps=epsilon, residual_stats="unrounded", return_stats=True
    )
    return y, _statistic(mean, x), _statistic(rstd, x), h


def skip_simplified_layer_normalization(x, skip, gamma, *, epsilon=SKIP_EPSILON):
    y, h, rstd = normkit.rms_norm(x, gamma, residual=skip, eps=epsilon, residual_stats="unrounded", return_stats=True)
    return y, None, _statistic(rstd, x), h


OPERATORS = {
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization,
    "GroupNormalization": group_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "LpNormalization": lp_normalization,
    "SimplifiedLayerNormalization": simplified_layer_normalization,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
}


class Prepared(BackendRep):
    def __init__(self, graph: onnx.GraphProto):
        (self.node,) = graph.node
        self.operator = OPERATORS[self.node.op_type]
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in self.node.attribute}
        self.constants = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
        self.inputs = [i.name for i in graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in graph.output]

    def run(self, inputs, **kwargs):
        given = self.constants | dict(zip(self.inputs, inputs, strict=True))
        results = self.operator(*(given[name] if name else None for name in self.node.input), **self.attributes)
        named = dict(zip(self.node.output, results, strict=False))  # outputs that the node does not name are dropped
        NormkitBackend.runs += 1
        return tuple(named[name] for name in self.outputs)


class NormkitBackend(Backend):
    runs = 0  # how many models have been run: a test of ONNX's runner that raises "not implemented" would pass

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        if onnx.defs.has(model.graph.node[0].op_type, model.graph.node[0].domain):  # not an operator of ONNX Runtime
            onnx.checker.check_model(model)
        return Prepared(model.graph)

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"
