"""LayerNorm and RMSNorm as drop-in modules for torch.nn's."""

import copy
import io

import normkit.torch
import pytest
import torch
from torch.nn.utils import parametrize
from torch_helpers import F, close_to_torch, make

PAIRS = [(normkit.torch.LayerNorm, torch.nn.LayerNorm), (normkit.torch.RMSNorm, torch.nn.RMSNorm)]


ARGUMENTS = [{}, {"eps": 0.1}, {"elementwise_affine": False}, {"dtype": torch.bfloat16}]


@pytest.mark.parametrize(
    "ours,theirs,arguments", [(*p, a) for p in PAIRS for a in ARGUMENTS] + [(*PAIRS[0], {"bias": False})], ids=str
)
@pytest.mark.parametrize("shape", [12, (12,), [3, 4], (1,)], ids=str)
def test_constructor_state_and_results(ours, theirs, arguments, shape):
    a, b = ours(shape, **arguments), theirs(shape, **arguments)
    assert a.state_dict().keys() == b.state_dict().keys()
    assert repr(a) == repr(b) and isinstance(a, theirs)
    for p in b.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(0))
    assert str(a.load_state_dict(b.state_dict())) == "<All keys matched successfully>"
    x = make(5, *b.normalized_shape, dtype=arguments.get("dtype", torch.float32))
    close_to_torch(a(x), b(x))
    with torch.no_grad():
        close_to_torch(a(x), b(x))


@pytest.mark.parametrize("ours,theirs", PAIRS, ids=["LayerNorm", "RMSNorm"])
def test_wrong_widths_are_refused(ours, theirs):
    for shape, x in ((8, torch.ones(2, 7)), (1, torch.ones(2, 7)), ((2, 3), torch.ones(2, 6)), ((2, 3), torch.ones(3))):
        for module in (ours(shape), ours(shape, elementwise_affine=False)):
            with pytest.raises(ValueError, match="_norm"), torch.no_grad():
                module(x)
            with pytest.raises(ValueError, match="_norm"):
                module(x)


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("ours,theirs", PAIRS, ids=["LayerNorm", "RMSNorm"])
def test_one_element_does_not_stand_for_a_row(ours, theirs, grad):
    one = torch.nn.Parameter(torch.ones(1))
    weight, bias = ours(6), ours(6)
    weight.weight = one
    cases = [(ours((1, 1)), make(5, 7, 9)), (ours(1), make(5, 7)), (weight, make(2, 6)), (weight, make(2, 7))]
    if ours is normkit.torch.LayerNorm:
        bias.bias = one
        cases.append((bias, make(2, 6)))
    for module, x in cases:
        with torch.set_grad_enabled(grad), pytest.raises(ValueError, match=r"expected (last dimensions )?\[[16]"):
            module(x)
        with pytest.raises(RuntimeError):
            theirs.forward(module, x)
    with torch.set_grad_enabled(grad):
        close_to_torch(ours((1, 1))(make(5, 1, 1)), theirs((1, 1))(make(5, 1, 1)))


@pytest.mark.parametrize("ours,theirs", PAIRS, ids=["LayerNorm", "RMSNorm"])
def test_copies_and_files(ours, theirs):
    module, x = ours(8), make(3, 8)
    module.weight.data.uniform_()
    expected = module(x)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    for thing in (module, torch.nn.Sequential(module)):
        file = io.BytesIO()
        torch.save(thing, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x), expected)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = ours(8)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), expected)


@pytest.mark.parametrize("ours,theirs", PAIRS, ids=["LayerNorm", "RMSNorm"])
def test_meta_device(ours, theirs):
    module = ours(8, device="meta", dtype=torch.bfloat16)
    y = module(torch.empty(4, 8, device="meta", dtype=torch.bfloat16))
    assert y.device.type == "meta" and y.shape == (4, 8) and y.dtype == torch.bfloat16
    assert module.to_empty(device="cpu")(make(4, 8, dtype=torch.bfloat16)).device.type == "cpu"
    with torch.device("meta"):
        assert ours(8)(torch.ones(4, 8)).device.type == "meta"


@pytest.mark.parametrize("ours,theirs", PAIRS, ids=["LayerNorm", "RMSNorm"])
def test_parametrized_and_swapped_weights(ours, theirs):
    class Exp(torch.nn.Module):
        def forward(self, w):
            return w.exp()

    module, x = ours(8), make(3, 8)
    doubled = torch.func.functional_call(module, {"weight": torch.full((8,), 2.0)}, (x,))
    assert torch.equal(doubled, 2 * module(x))
    parametrize.register_parametrization(module, "weight", Exp())
    with torch.no_grad():
        close_to_torch(module(x), theirs(8)(x) * torch.e)
    module(x).sum().backward()
    assert module.parametrizations.weight.original.grad is not None


def test_changed_attributes_count():
    module, x = normkit.torch.LayerNorm(8), make(3, 8)
    module.eps = 0.5
    assert torch.equal(module(x), F.layer_norm(x, (8,), module.weight, module.bias, 0.5))


def test_training_reaches_the_same_weights_as_torch():
    torch.manual_seed(0)
    results = []
    for norm in (normkit.torch.LayerNorm, torch.nn.LayerNorm):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(6, 16), norm(16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for step in range(20):
            x = make(32, 6, seed=step)
            loss = (net(x)[:, 0] - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        results.append(loss.detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_data_parallel_threads_share_a_module():
    from concurrent.futures import ThreadPoolExecutor

    module, x = normkit.torch.RMSNorm(512), make(64, 512)
    expected = module(x)
    with ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: module(x), range(64)):
            assert torch.equal(y, expected)


def test_symbolic_trace_of_a_norm_without_eps():
    model = torch.nn.Sequential(normkit.torch.RMSNorm(8))
    x = torch.randn(2, 8)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))
