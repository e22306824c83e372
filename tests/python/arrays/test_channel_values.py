"""The channel norms against the f64 reference: values, saved and running statistics, gradients, types of results."""

import channel_reference as reference
import normkit
import numpy as np
import pytest
from arrays.kinds import CHANNEL_OPS, channel_norm, random, same_bits
from reference import DTYPES

RUNNING_OPS = ("batch_norm", "instance_norm")
# (samples, channels, positions...): one position, odd sizes, blocks of positions, many channels
SHAPES = [(5, 6), (1, 2, 1), (3, 4, 7), (2, 6, 5, 13), (2, 66, 3, 2), (1, 4, 4099), (300, 18)]


def operands(shape, name, channel_axis=1, parameter=None, seed=0, shift=3.0):
    """x, weight, bias, dy and running statistics."""
    rng = np.random.default_rng(seed)
    dtype, c = DTYPES[name], shape[1]
    if channel_axis == -1:
        shape = (shape[0], *shape[2:], shape[1])
    x, dy = random(rng, shape, dtype, 2.0, shift), random(rng, shape, dtype)
    w, b = (random(rng, c, parameter or dtype) for _ in range(2))
    return x, w, b, dy, [random(rng, c, np.float64), rng.uniform(0.5, 2, c)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("channel_axis", [1, -1])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_values_of_both_directions(op, name, channel_axis, shape):
    x, w, b, dy, _ = operands(shape, name, channel_axis)
    want = reference.forward(op, x, w, b, channel_axis=channel_axis)
    got = channel_norm(op)(x, w, b, channel_axis=channel_axis, return_stats=True)
    assert [a.dtype for a in got] == [x.dtype, np.float64, np.float64]
    for a, (key, e) in zip(got, want.items(), strict=True):
        e.check(a, key)
    assert same_bits(channel_norm(op)(x, w, b, channel_axis=channel_axis), got[0])
    want = reference.backward(op, dy, x, w, channel_axis=channel_axis)
    got = channel_norm(op + "_backward")(dy, x, w, channel_axis=channel_axis)
    for a, (key, e) in zip(got, want.items(), strict=True):
        assert a.dtype == x.dtype
        e.check(a, key)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_without_parameters_and_with_another_eps(op, name):
    x, _, _, dy, _ = operands((3, 4, 7), name)
    got = channel_norm(op)(x, eps=0.5)
    reference.forward(op, x, eps=0.5)["y"].check(got)
    want = reference.backward(op, dy, x, eps=0.5)
    got = channel_norm(op + "_backward")(dy, x, eps=0.5)
    for a, (key, e) in zip(got, want.items(), strict=True):
        assert a.dtype == (x.dtype if key == "dx" else np.float64 if name == "f64" else np.float32)
        e.check(a, key)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_16_bit_data_with_float32_parameters_and_outputs(op, name):
    x, w, b, dy, _ = operands((3, 4, 33), name, parameter=np.float32)
    y = channel_norm(op)(x, w, b, out=np.empty(x.shape, np.float32))
    assert y.dtype == np.float32
    reference.forward(op, x, w, b)["y"].check(y)
    dx, dweight, dbias = np.empty(x.shape, np.float32), np.empty(4), np.empty(4, x.dtype)
    given = dict(dx=dx, dweight=dweight, dbias=dbias)
    got = channel_norm(op + "_backward")(dy.astype(np.float32), x, w, **given)
    for a, (key, e) in zip(got, reference.backward(op, dy, x, w).items(), strict=True):
        assert a is given[key]
        e.check(a, key)
    assert [a.dtype for a in channel_norm(op + "_backward")(dy, x, w)] == [x.dtype, np.float32, np.float32]


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups(groups):
    x, w, b, dy, _ = operands((2, 6, 35), "f32")
    got = normkit.group_norm(x, groups, w, b, return_stats=True)
    assert got[1].shape == got[2].shape == (2, groups)
    for a, (key, e) in zip(got, reference.forward("group_norm", x, w, b, groups=groups).items(), strict=True):
        e.check(a, key)
    got = normkit.group_norm_backward(dy, x, groups, w)
    for a, (key, e) in zip(got, reference.backward("group_norm", dy, x, w, groups=groups).items(), strict=True):
        e.check(a, key)
    assert same_bits(normkit.group_norm(x, groups=groups, weight=w, bias=b), normkit.group_norm(x, groups, w, b))
    if groups == 6:
        assert same_bits(normkit.group_norm(x, 6, w, b), normkit.instance_norm(x, w, b))


@pytest.mark.parametrize("kept", [np.float32, np.float64])
@pytest.mark.parametrize("update", ["torch", "keras"])
@pytest.mark.parametrize(("name", "channel_axis"), [("f32", 1), ("bf16", 1), ("f64", -1)])
@pytest.mark.parametrize("op", RUNNING_OPS)
def test_running_statistics_move_in_place(op, name, channel_axis, update, kept):
    x, w, b, _, running = operands((4, 6, 35), name, channel_axis)
    running = [a.astype(kept) for a in running]
    for momentum in (0.1, 0.0, 1.0):
        mean, var = (a.copy() for a in running)
        options = dict(running_mean=mean, running_var=var, momentum=momentum, running_update=update)
        y = channel_norm(op)(x, w, b, channel_axis=channel_axis, **options)
        assert same_bits(y, channel_norm(op)(x, w, b, channel_axis=channel_axis))
        want = reference.running_after(op, x, running, momentum, update, channel_axis=channel_axis)
        want[0].check(mean, "running_mean")
        want[1].check(var, "running_var")
        if momentum == (0.0 if update == "torch" else 1.0):
            assert same_bits(mean, running[0]) and same_bits(var, running[1])


def test_the_default_update_is_torchs_by_a_tenth():
    x, _, _, _, running = operands((4, 6, 35), "f32")
    for options in ({}, {"momentum": 0.1, "running_update": "torch"}, {"momentum": 0.1, "training": True}):
        mean, var = (a.copy() for a in running)
        normkit.batch_norm(x, running_mean=mean, running_var=var, **options)
        want = reference.running_after("batch_norm", x, running, 0.1, "torch")
        want[0].check(mean)
        want[1].check(var)


@pytest.mark.parametrize("channel_axis", [1, -1])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", RUNNING_OPS)
def test_normalization_by_running_statistics(op, name, channel_axis):
    x, w, b, dy, running = operands((3, 6, 35), name, channel_axis)
    mean, var = (a.copy() for a in running)
    for a in (mean, var):
        a.flags.writeable = False
    options = dict(running_mean=mean, running_var=var, training=False, channel_axis=channel_axis)
    y = channel_norm(op)(x, w, b, **options)
    reference.forward(op, x, w, b, running=running, channel_axis=channel_axis)["y"].check(y)
    got = channel_norm(op + "_backward")(dy, x, w, **options)
    want = reference.backward(op, dy, x, w, running=running, channel_axis=channel_axis)
    for a, (key, e) in zip(got, want.items(), strict=True):
        e.check(a, key)
    assert same_bits(mean, running[0]) and same_bits(var, running[1])


@pytest.mark.parametrize("shape", [(3, 4, 65), (3, 4)])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_backward_takes_the_statistics_of_the_forward(op, name, shape):
    x, w, _, dy, _ = operands(shape, name)
    _, mean, rstd = channel_norm(op)(x, w, return_stats=True)
    backward = channel_norm(op + "_backward")
    want, exact = backward(dy, x, w), reference.backward(op, dy, x, w)
    for got in (backward(dy, x, w, mean, rstd), backward(dy, x, weight=w, mean=mean, rstd=rstd)):
        for a, b, key in zip(got, want, exact, strict=True):
            if name == "f64":  # one double holds a little less than the engine's mean
                exact[key].check(a, key)
            else:
                assert same_bits(a, b)
    for a, key in zip(backward(dy, x, w, mean.astype("f4"), rstd.astype("f4")), want, strict=True):
        assert np.allclose(a.astype("f8"), key.astype("f8"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("channel_axis", [1, -1])
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_gradients_are_those_of_finite_differences(op, channel_axis):
    x, w, b, dy, _ = operands((3, 4, 5), "f64", channel_axis)

    def loss(*given):
        return float((channel_norm(op)(*given, channel_axis=channel_axis, eps=1e-2) * dy).sum())

    got = channel_norm(op + "_backward")(dy, x, w, channel_axis=channel_axis, eps=1e-2)
    for place, gradient in enumerate(got):
        for index in np.ndindex(gradient.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in (x, w, b)]
                moved[place][index] += step
                sides.append(loss(*moved))
            assert abs((sides[0] - sides[1]) / 2e-5 - gradient[index]) < 1e-7


@pytest.mark.parametrize("channel_axis", [1, -1])
@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_constant_channels_are_the_bias(op, channel_axis):
    b = np.arange(1, 5, dtype=np.float32)
    x = np.full((3, 4, 9), 7, np.float32)
    if channel_axis == -1:
        x = np.ascontiguousarray(x.swapaxes(1, 2))
    for eps in (1e-5, 0.0):
        y, mean, rstd = channel_norm(op)(x, None, b, eps=eps, channel_axis=channel_axis, return_stats=True)
        assert np.array_equal(np.moveaxis(y, channel_axis, -1), np.broadcast_to(b, (3, 9, 4)))
        assert np.all(mean == 7) and np.all(rstd == (eps**-0.5 if eps else 0))


def test_one_value_per_channel():
    x, b = np.float32([[3, -5]]), np.float32([1, 2])
    mean, var = np.zeros(2), np.ones(2)
    y = normkit.batch_norm(x, None, b, running_mean=mean, running_var=var, momentum=0.5)
    assert np.array_equal(y, b[None])
    assert np.array_equal(mean, [1.5, -2.5]) and np.array_equal(var, [0.5, 0.5])
    assert np.array_equal(normkit.instance_norm(np.float32([[[3], [4]]])), np.zeros((1, 2, 1)))


@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_nan_and_infinity_stay_in_their_set(op):
    x, w, b, _, _ = operands((3, 4, 9), "f32")
    clean = channel_norm(op)(x, w, b)
    touched = np.zeros(x.shape, bool)
    touched[(slice(None), 1) if op == "batch_norm" else (2, 1) if op == "instance_norm" else (2, slice(0, 2))] = True
    for bad in (np.nan, np.inf, -np.inf):
        dirty = x.copy()
        dirty[2, 1, 5] = bad
        got = channel_norm(op)(dirty, w, b)
        assert np.isnan(got[touched]).any()
        assert same_bits(got[~touched], clean[~touched])
