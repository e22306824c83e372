"""The f64 reference of the channel norms. A set (what shares statistics) is a row of layer_norm, see reference.py."""

import numpy as np
from reference import Expected
from reference import backward as rows_backward
from reference import forward as rows_forward


class Sets:
    """Brings arrays of x's shape to [sets, elements] and back, and values per channel to x's shape."""

    def __init__(self, op: str, shape, channel_axis: int = 1, groups: int = 2):
        self.shape = tuple(shape)
        self.first = tuple(np.moveaxis(np.empty(self.shape, "?"), channel_axis, 1).shape)
        self.axis, self.op = channel_axis, op
        n, c = self.first[:2]
        self.stats = {"batch_norm": (c,), "instance_norm": (n, c), "group_norm": (n, groups)}[op]

    def rows(self, a):
        a = np.moveaxis(a, self.axis, 1)
        return (a.swapaxes(0, 1) if self.op == "batch_norm" else a).reshape(int(np.prod(self.stats)), -1)

    def back(self, rows):
        n, c, *positions = self.first
        a = rows.reshape(c, n, *positions).swapaxes(0, 1) if self.op == "batch_norm" else rows.reshape(self.first)
        return np.moveaxis(a, 1, self.axis)

    def channels(self, values, default: float, wide):
        """[C] -> x's shape."""
        values = np.full(self.first[1], default, wide) if values is None else values.astype(wide)
        shape = [1] * len(self.shape)
        shape[self.axis] = -1
        return np.broadcast_to(values.reshape(shape), self.shape)

    def total(self, values):
        """x's shape -> [C]."""
        return np.moveaxis(values, self.axis, 1).reshape(*self.first[:2], -1).sum((0, 2))


def _wide(x):
    return np.dtype(np.longdouble if x.dtype == np.dtype("f8") else "f8")


def _normalized(sets: Sets, x, eps, running):
    """xhat and rstd in x's shape, and what the rows' reference says of y, mean and rstd."""
    if running is None:
        rows = rows_forward("layer_norm", sets.rows(x), eps=eps)
        rstd = np.broadcast_to(rows["rstd"].value[:, None], rows["y"].value.shape)
        return sets.back(rows["y"].value), sets.back(rstd), rows
    mean, var = (sets.channels(a, 0, _wide(x)) for a in running)
    divisor = np.sqrt(var + _wide(x).type(eps))
    rstd = np.where(divisor == 0, 0, 1 / np.where(divisor == 0, 1, divisor))
    return (x.astype(_wide(x)) - mean) * rstd, rstd, None


def _unit(x) -> float:
    return 2.0**-53 if x.dtype == np.dtype("f8") else 2.0**-24


def forward(op, x, weight=None, bias=None, *, running=None, eps=1e-5, channel_axis=1, groups=2) -> dict:
    """y, and (not by `running` statistics) mean and rstd, as Expected."""
    sets = Sets(op, x.shape, channel_axis, groups)
    xhat, _, rows = _normalized(sets, x, eps, running)
    w, b = sets.channels(weight, 1, _wide(x)), sets.channels(bias, 0, _wide(x))
    result = {"y": Expected(xhat * w + b, np.abs(w) * (np.abs(xhat) + 1) + np.abs(b), _unit(x))}
    for key in ("mean", "rstd") if rows else ():
        e = rows[key]
        result[key] = Expected(e.value.reshape(sets.stats), e.scale.reshape(sets.stats), e.unit)
    return result


def running_after(op, x, running, momentum, update, *, channel_axis=1) -> list:
    """running_mean and running_var (float64) as Expected, after one batch."""
    sets = Sets(op, x.shape, channel_axis)
    rows = sets.rows(x).astype(_wide(x))
    mean, var = rows.mean(1), rows.var(1)
    if update == "torch":
        var = var * (rows.shape[1] / max(1, rows.shape[1] - 1))
    deviation = np.sqrt(var)
    mean, var, deviation = (a.reshape(-1, sets.first[1]).mean(0) for a in (mean, var, deviation))
    fresh = momentum if update == "torch" else 1 - momentum
    (old_mean, old_var), unit = (a.astype(_wide(x)) for a in running), _unit(x)
    return [
        Expected((1 - fresh) * old_mean + fresh * mean, deviation + np.abs(old_mean) + np.abs(mean), unit),
        Expected((1 - fresh) * old_var + fresh * var, 2 * var + old_var, unit),
    ]


def backward(op, dy, x, weight=None, *, running=None, eps=1e-5, channel_axis=1, groups=2) -> dict:
    """dx, dweight and dbias as Expected."""
    sets = Sets(op, x.shape, channel_axis, groups)
    xhat, rstd, _ = _normalized(sets, x, eps, running)
    d = dy.astype(_wide(x))
    g = d * sets.channels(weight, 1, _wide(x))
    if running is None:
        e = rows_backward("layer_norm", sets.rows(g), sets.rows(x), eps=eps)["dx"]
        dx, scale = sets.back(e.value), sets.back(e.scale)
    else:
        dx, scale = rstd * g, rstd * np.abs(g)
    return {
        "dx": Expected(dx, scale, _unit(x)),
        "dweight": Expected(sets.total(d * xhat), sets.total(np.abs(d) * (np.abs(xhat) + 1)), _unit(x)),
        "dbias": Expected(sets.total(d), sets.total(np.abs(d)), _unit(x)),
    }
