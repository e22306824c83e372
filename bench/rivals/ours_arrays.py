"""normkit by its array functions, on torch tensors if torch is there, otherwise on NumPy arrays."""

from __future__ import annotations

from functools import partial

import numpy as np
from harness.channels import GROUPS

from . import Prepared, autograd, missing

NAME, TORCH_DOOR = "normkit", False


def absent() -> str | None:
    return missing("normkit")


def version() -> str:
    import normkit

    return normkit.__version__


def prepare_channels(cell, data, threads, outputs_given) -> Prepared:
    import normkit

    view = data.torch if missing("torch") is None else (lambda array: array)
    as_numpy = autograd.numpy_of if missing("torch") is None else np.asarray
    op = cell.op.removesuffix("_eval")
    groups = [GROUPS] if op == "group_norm" else []
    x, weight, bias, dy = (None if a is None else view(a) for a in (data.x, data.weight, data.bias, data.dy))
    options = {"eps": cell.eps, "threads": threads}
    if cell.op == "batch_norm_eval":
        options |= {"running_mean": view(data.running_mean), "running_var": view(data.running_var), "training": False}
    y, dx = view(data.empty_like_x()), view(data.empty_like_x())
    dweight, dbias = view(data.empty(data.width)), view(data.empty(data.width))
    forward = partial(
        getattr(normkit, op), x, *groups, weight, bias, **options, **({"out": y} if outputs_given else {})
    )
    if not cell.backward:
        return Prepared(forward, lambda: {"y": as_numpy(forward())}, given=outputs_given)
    back = partial(getattr(normkit, op + "_backward"), dy, x, *groups, weight, **options)
    given = {"dx": dx, "dweight": dweight, "dbias": dbias} if outputs_given else {}

    def run():
        out, mean, rstd = forward(return_stats=True)
        return out, *back(mean=mean, rstd=rstd, **given)

    def results():
        return {name: as_numpy(a) for name, a in zip(("y", "dx", "dweight", "dbias"), run(), strict=True)}

    return Prepared(run, results, given=outputs_given)


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if not hasattr(cell, "rows"):
        return prepare_channels(cell, data, threads, outputs_given)
    import normkit

    view = data.torch if missing("torch") is None else (lambda array: array)
    as_numpy = autograd.numpy_of if missing("torch") is None else np.asarray
    norm = normkit.layer_norm if cell.centred else normkit.rms_norm
    options = {"eps": cell.eps, "threads": threads}
    if cell.op == "llama_rms_norm":
        options["rounding"] = "before_weight"
    inputs = [view(a) for a in (data.x, data.weight, data.bias) if a is not None]
    if cell.residual:
        options["residual"] = view(data.residual)
    outputs = {"y": view(data.empty_like_x())} | ({"h": view(data.empty_like_x())} if cell.residual else {})
    given = {"out": outputs["y"]} | ({"residual_out": outputs["h"]} if cell.residual else {})
    forward = partial(norm, *inputs, **options, **(given if outputs_given else {}))
    if not cell.backward:

        def results():
            norm(*inputs, **options, **given)
            return {name: as_numpy(array) for name, array in outputs.items()}

        return Prepared(forward, results, given=outputs_given)

    back = normkit.layer_norm_backward if cell.centred else normkit.rms_norm_backward
    gradients = {"dx": view(data.empty_like_x()), "dweight": view(data.empty(data.width))}
    if cell.centred:
        gradients["dbias"] = view(data.empty(data.width))
    dy, weight = view(data.dy), inputs[1]
    back_options = {"eps": cell.eps, "threads": threads} | (gradients if outputs_given else {})
    if cell.residual:
        back_options["dresidual_out"] = view(data.dh)

    def run():
        outs = forward(return_stats=True)
        stats = {"rstd": outs[-1]} | ({"mean": outs[-2]} if cell.centred else {})
        source = outs[1] if cell.residual else inputs[0]  # h was stored: it is read instead of x and the residual
        return outs, back(dy, source, weight, **stats, **back_options)

    def results():
        outs, grads = run()
        found = {"y": outs[0], "h": outs[1] if cell.residual else None}
        found |= dict(zip(("dx", "dweight", "dbias"), grads, strict=True))
        return {name: as_numpy(a) for name, a in found.items() if a is not None and (name != "dbias" or cell.centred)}

    return Prepared(run, results, given=outputs_given)
