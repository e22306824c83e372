"""BatchNorm, InstanceNorm and GroupNorm as drop-in modules for torch.nn's: values, gradients, buffers, files."""

import copy
import io
import warnings

import normkit.torch
import pytest
import torch
from torch.nn.utils import parametrize
from torch_helpers import DTYPES, close_to_torch, make

nn = torch.nn
N, C = 4, 6
SIZES = {1: (9,), 2: (5, 7), 3: (3, 4, 5)}
AFFINE = [{}, {"affine": False}, {"bias": False}, {"eps": 0.1}]
RUNNING = [{"momentum": None}, {"momentum": 0.3}, {"momentum": 1.0}, {"track_running_stats": False}]
TRACKED = {"affine": True, "track_running_stats": True}
ARGUMENTS = {
    "BatchNorm": [*AFFINE, *RUNNING],
    "InstanceNorm": [
        {},
        TRACKED,
        {**TRACKED, "momentum": None},
        {**TRACKED, "momentum": 0.3},
        {**TRACKED, "bias": False},
    ],
    "GroupNorm": AFFINE,
}
CASES = [(name, rank, a) for name, arguments in ARGUMENTS.items() for rank in (1, 2, 3) for a in arguments]
EACH = [("BatchNorm", 2, {}), ("InstanceNorm", 2, TRACKED), ("GroupNorm", 2, {})]


def classes(name, rank):
    name += "" if name == "GroupNorm" else f"{rank}d"
    return getattr(normkit.torch, name), getattr(nn, name)


def pair(name, rank, arguments, dtype=torch.float32):
    """(ours, torch's) with the same random parameters and statistics."""
    sizes = (3, C) if name == "GroupNorm" else (C,)
    ours, theirs = (cls(*sizes, **arguments, dtype=dtype) for cls in classes(name, rank))
    for k, t in theirs.state_dict().items():
        if t.is_floating_point():
            t.copy_(make(*t.shape, mean=0.0 if k.endswith(("mean", "bias")) else 1.5, scale=0.2, dtype=dtype))
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    return ours, theirs


def data(rank, dtype=torch.float32, seed=0, channels_last=False):
    x = make(N, C, *SIZES[rank], dtype=dtype, seed=seed)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[rank]) if channels_last else x


def same_state(ours, theirs, factor=64):
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        close_to_torch(a, b, factor) if a.is_floating_point() else torch.testing.assert_close(a, b)


def same_gradients(ours, theirs, x, dy):
    """First derivatives: torch's own of 16-bit types are not exact enough to tell, so those of f64."""
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    ours(leaf).backward(dy)
    exact, wide = copy.deepcopy(theirs).double(), x.to(torch.float64, copy=True).requires_grad_()
    exact(wide).backward(dy.double())
    close_to_torch(leaf.grad, wide.grad.to(x.dtype), 256)
    assert leaf.grad.stride() == leaf.stride()
    for a, b in zip(ours.parameters(), exact.parameters(), strict=True):
        close_to_torch(a.grad, b.grad.to(a.dtype), 256)


@pytest.mark.parametrize("name,rank,arguments", CASES, ids=str)
def test_training_and_evaluation(name, rank, arguments):
    ours, theirs = pair(name, rank, arguments)
    assert repr(ours) == repr(theirs) and isinstance(ours, type(theirs))
    for seed in range(3):
        x = data(rank, seed=seed)
        close_to_torch(ours(x), theirs(x))
        same_state(ours, theirs)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        same_gradients(copy.deepcopy(ours), theirs, x, data(rank, seed=7))
        with torch.no_grad():
            close_to_torch(ours(x), theirs(x))
        same_state(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("parameters", ["same", "f32"])
@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_types_and_memory_formats(name, rank, arguments, dtype, channels_last, parameters):
    wide = dtype if parameters == "same" else torch.float32
    if dtype == torch.float64 and parameters == "f32":
        return
    ours, theirs = pair(name, rank, arguments, wide)
    x, dy = data(rank, dtype, channels_last=channels_last), data(rank, dtype, 1, not channels_last)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        y = ours(x)
        assert y.stride() == x.stride() and y.dtype == dtype
        close_to_torch(y, theirs(x))
        same_state(ours, theirs)
        same_gradients(copy.deepcopy(ours), theirs, x, dy)


@pytest.mark.parametrize("name", ["BatchNorm", "InstanceNorm"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_running_statistics_are_moved_in_f32_and_rounded_once(name, dtype):
    ours, _ = pair(name, 1, TRACKED, dtype)
    wide = copy.deepcopy(ours).float()
    x = data(1, dtype)
    for t, w in ((ours.running_mean, wide.running_mean), (ours.running_var, wide.running_var)):
        w.copy_(t)
    ours(x), wide(x)
    assert ours.running_mean.dtype == dtype
    assert torch.equal(ours.running_mean, wide.running_mean.to(dtype))
    assert torch.equal(ours.running_var, wide.running_var.to(dtype))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_inputs_without_a_batch(rank):
    for arguments in ({}, TRACKED):
        ours, theirs = pair("InstanceNorm", rank, arguments)
        x = data(rank)[0]
        y = ours(x)
        close_to_torch(y, theirs(x))
        assert y.shape == x.shape
        same_state(ours, theirs)


def test_batch_norm_of_two_dimensions():
    ours, theirs = pair("BatchNorm", 1, {})
    x = make(8, C)
    close_to_torch(ours(x), theirs(x))
    same_gradients(ours, theirs, x, make(8, C, seed=1))


@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_empty_batches(name, rank, arguments):
    ours, _ = pair(name, rank, arguments)
    before = copy.deepcopy(ours.state_dict())
    x = data(rank)[:0].requires_grad_()
    y = ours(x)
    y.sum().backward()
    assert y.shape == x.shape and x.grad.shape == x.shape
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in ours.parameters())
    assert all(torch.equal(v, before[k]) for k, v in ours.state_dict().items() if k != "num_batches_tracked")


WRONG = {
    "channels": lambda x: x[:, :5],
    "dimensions": lambda x: x[None, None],
    "few dimensions": lambda x: x[0, 0, 0],
    "one value": lambda x: x[:1, :, :1, :1],
    "integers": lambda x: x.long(),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_mistakes_raise_what_torch_raises(name, rank, arguments, what, training):
    ours, theirs = (m.train(training) for m in pair(name, rank, arguments))
    x = WRONG[what](data(rank))
    if (name, what) == ("GroupNorm", "one value"):  # where 3 groups of 2 values are fine
        return
    with torch.no_grad():
        try:
            expected = theirs(x)
        except Exception as error:
            with pytest.raises(type(error)):
                ours(x)
        else:
            close_to_torch(ours(x), expected)


@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_copies_and_files(name, rank, arguments):
    module, _ = pair(name, rank, arguments)
    x = data(rank)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [copy.deepcopy(module), torch.load(file, weights_only=False)]
    expected = module(x)
    for other in copies:
        assert type(other) is type(module) and torch.equal(other(x), expected)
        same_state(other, module)


@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_meta_device(name, rank, arguments):
    cls, _ = classes(name, rank)
    sizes = (3, C) if name == "GroupNorm" else (C,)
    module = cls(*sizes, **arguments, device="meta", dtype=torch.bfloat16)
    x = data(rank, torch.bfloat16, channels_last=True).to("meta")
    y = module(x)
    assert y.device.type == "meta" and y.stride() == x.stride() and y.dtype == torch.bfloat16
    with torch.device("meta"):
        assert cls(*sizes, **arguments)(torch.ones(2, C, 3, 3)).device.type == "meta"


@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_autocast_gives_the_types_that_torch_gives(name, rank, arguments):
    ours, theirs = pair(name, rank, arguments)
    conv = nn.Conv2d(C, C, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for x in (data(rank), conv(data(rank))):
            close_to_torch(ours(x), theirs(x))
            same_state(ours, theirs)


@pytest.mark.parametrize("name,rank,arguments", EACH, ids=str)
def test_parametrized_and_swapped_weights(name, rank, arguments):
    class Exp(nn.Module):
        def forward(self, w):
            return w.exp()

    ours, theirs = pair(name, rank, arguments)
    x = data(rank)
    given = {"weight": torch.full((C,), 2.0)}
    close_to_torch(torch.func.functional_call(ours, given, (x,)), torch.func.functional_call(theirs, given, (x,)))
    for m in (ours, theirs):
        parametrize.register_parametrization(m, "weight", Exp())
    close_to_torch(ours(x), theirs(x))
    ours(x).sum().backward()
    assert ours.parametrizations.weight.original.grad is not None


@pytest.mark.parametrize("name", ["BatchNorm", "InstanceNorm"])
def test_running_statistics_change_the_version_counter_and_not_the_gradients_of_earlier_calls(name):
    module, theirs = pair(name, 2, TRACKED)
    x, dy = data(2).requires_grad_(), data(2, seed=1)
    theirs.eval()
    (expected,) = torch.autograd.grad(theirs(x), x, dy)
    before = module.running_mean._version
    y = module.eval()(x)
    module.train()(x)
    assert module.running_mean._version > before
    (g,) = torch.autograd.grad(y, x, dy)
    close_to_torch(g, expected)
    with torch.inference_mode():
        assert module(data(2)).is_inference()
        ours = classes(name, 2)[0](C, **TRACKED)
        assert ours(data(2)).is_inference() and not torch.equal(ours.running_mean, torch.zeros(C))


def test_counters_and_mean_of_all_batches():
    module = normkit.torch.BatchNorm1d(2, momentum=None)
    batches = [make(8, 2, seed=s) for s in range(4)]
    for x in batches:
        module(x)
    assert module.num_batches_tracked == 4
    torch.testing.assert_close(module.running_mean, torch.stack([x.mean(0) for x in batches]).mean(0))
    torch.testing.assert_close(module.running_var, torch.stack([x.var(0) for x in batches]).mean(0))
    module.reset_running_stats()
    assert module.num_batches_tracked == 0 and torch.equal(module.running_var, torch.ones(2))


def test_old_files_without_a_counter_load():
    module = normkit.torch.BatchNorm1d(2)
    state = module.state_dict()
    del state["num_batches_tracked"]
    state._metadata[""]["version"] = 1
    module.load_state_dict(state)


def test_training_reaches_the_same_weights_as_torch():
    results = []
    for package in (normkit.torch, nn):
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), package.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3), package.GroupNorm(4, 8), nn.GELU(),
            nn.Conv2d(8, 8, 3), package.InstanceNorm2d(8, affine=True), nn.Flatten(), nn.Linear(8 * 36, 1),
        )  # fmt: skip
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for step in range(6):
            x = make(8, 3, 12, 12, seed=step)
            loss = (net(x)[:, 0] - x.mean((1, 2, 3))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append((loss.detach(), net[1].running_var.clone()))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_data_parallel_threads_share_a_module():
    from concurrent.futures import ThreadPoolExecutor

    module, x = normkit.torch.BatchNorm2d(16).eval(), make(8, 16, 8, 8)
    expected = module(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(y, expected) for y in pool.map(lambda _: module(x), range(32)))


def test_a_wrong_number_of_channels_is_an_error_where_torch_only_warns():
    module, x = normkit.torch.InstanceNorm1d(64), make(4, 80, 30)
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"80 channels.*expected 64"):
        warnings.simplefilter("error")
        module(x)
    with pytest.raises(ValueError, match="expected max"):
        normkit.torch.InstanceNorm1d("max")(x)
    with pytest.raises(ValueError, match="80 channels"):
        normkit.torch.InstanceNorm1d(64)(x[0])
