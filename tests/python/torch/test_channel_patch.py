"""patch and unpatch for BatchNorm, InstanceNorm and GroupNorm of torch.nn, in small nets of each kind."""

import copy
import io

import normkit.torch
import pytest
import torch
from normkit.torch import patch, unpatch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch_helpers import close_to_torch, make


class Residual(nn.Module):
    """A block of U-Nets: GroupNorm, SiLU, convolution, twice, and a skip connection."""

    def __init__(self, channels, out):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, out, eps=1e-6), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1)

    def forward(self, x):
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(h)))


def cnn():
    layers = []
    for a, b in ((3, 16), (16, 24), (24, 8)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


def unet():
    down, middle = Residual(8, 16), Residual(16, 16)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), down, nn.AvgPool2d(2), middle, nn.Upsample(scale_factor=2))


def style():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, track_running_stats=True),
    )  # fmt: skip


def mixed():
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8, momentum=None), nn.InstanceNorm1d(8), nn.Unflatten(2, (2, 2, 3)),
        nn.BatchNorm3d(8, affine=False), nn.InstanceNorm3d(8, momentum=0.3, track_running_stats=True),
    )  # fmt: skip


NETS = {
    "cnn": (cnn, (4, 3, 10, 12), ["batch_norm eps=1e-05 momentum=0.1"] * 3),
    "unet": (unet, (2, 3, 8, 8), [f"group_norm eps={e} groups=4" for e in ("1e-05", "1e-06", "1e-05", "1e-06")]),
    "style": (style, (4, 3, 9, 7), ["instance_norm eps=1e-05", "instance_norm eps=1e-05 momentum=0.1"]),
    "mixed": (
        mixed,
        (4, 3, 14),
        [
            "batch_norm eps=1e-05 momentum=1/batches",
            "instance_norm eps=1e-05",
            "batch_norm eps=1e-05 momentum=0.1",
            "instance_norm eps=1e-05 momentum=0.3",
        ],
    ),
}


def net(name):
    torch.manual_seed(0)
    build, shape, definitions = NETS[name]
    model = build()
    for m in model.modules():
        if "Norm" in type(m).__name__ and m.weight is not None:
            nn.init.normal_(m.weight, 1.0, 0.2), nn.init.normal_(m.bias)
    return model, make(*shape), definitions


def step(model, x):
    """The loss of a step of SGD, with the gradients and the state that it leaves."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(x).square().mean()
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return [loss.detach(), *grads, *model.state_dict().values()]


def agree(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", NETS)
def test_outputs_and_a_step_of_training_are_the_same(name, last):
    original, x, definitions = net(name)
    if last and x.dim() == 4:
        x, original = x.to(memory_format=torch.channels_last), original.to(memory_format=torch.channels_last)
    model = copy.deepcopy(original)
    report = patch(model)
    assert list(report.replaced.values()) == definitions and not report.left
    assert repr(model) == repr(original) and list(model.state_dict()) == list(original.state_dict())
    agree(step(model, x), step(original, x))
    model.eval(), original.eval()
    with torch.no_grad():
        close_to_torch(model(x), original(x), 2048)
    assert unpatch(model) == len(definitions)
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]


@pytest.mark.parametrize("name", NETS)
def test_copies_files_and_compiled_nets(name):
    model, x, definitions = net(name)
    patch(model)
    model.eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.no_grad():
        expected = model(x)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.equal(other(x), expected) and patch(other).replaced == patch(model).replaced
            assert unpatch(other) == len(definitions)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)
    assert "normkit" in torch.export.export(model, (x,)).graph_module.code


def test_what_changes_later_counts():
    for cls in (nn.BatchNorm1d, nn.InstanceNorm1d):
        module, reference = (cls(4, affine=True, track_running_stats=True) for _ in range(2))
        patch(module)
        for change in ({"eps": 0.5}, {"momentum": 0.7}, {"momentum": None}, {"training": False}):
            for m in (module, reference):
                for key, value in change.items():
                    setattr(m, key, value)
            x = make(3, 4, 5)
            close_to_torch(module(x), reference(x))
            agree(module.state_dict().values(), reference.state_dict().values())
        for m in (module, reference):
            m.double().load_state_dict(reference.state_dict())
            m.weight = nn.Parameter(torch.full((4,), 2.0, dtype=torch.float64))
        close_to_torch(module(x.double()), reference(x.double()))


class DoubledNorm(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


def replaced_forward():
    module = nn.GroupNorm(1, 4)
    module.forward = lambda x: x
    return module


def parametrized():
    module = nn.GroupNorm(1, 4)
    parametrize.register_parametrization(module, "weight", nn.Identity())
    return module


LEFT = {
    "subclass": (lambda: DoubledNorm(4), "derived"),
    "lazy": (nn.LazyBatchNorm2d, "LazyBatchNorm2d"),
    "lazy instance": (lambda: nn.LazyInstanceNorm2d(affine=True), "LazyInstanceNorm2d"),
    "sync": (lambda: nn.SyncBatchNorm(4), "SyncBatchNorm"),
    "quantized": (lambda: torch.ao.nn.quantized.BatchNorm2d(4), "derived"),
    "forward": (replaced_forward, "replaced on the instance"),
    "parametrized": (parametrized, "submodules"),
    "complex": (lambda: nn.BatchNorm1d(4).to(torch.complex64), "complex64"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LEFT)
def test_other_classes_and_changed_modules_are_left_with_a_reason(name):
    make_module, reason = LEFT[name]
    module = nn.Sequential(make_module())
    cls = type(module[0])
    report = patch(module)
    assert list(report.left) == ["0"] and reason in report.left["0"], str(report)
    assert type(module[0]) is cls and unpatch(module) == 0


def test_normkits_own_are_nothing_to_replace():
    report = patch(nn.Sequential(normkit.torch.BatchNorm2d(4), normkit.torch.GroupNorm(2, 4)))
    assert not report.replaced and not report.left


def test_a_forward_that_is_replaced_later_in_torchs_class_answers(monkeypatch):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4))
    patch(model)
    x = torch.arange(60.0).view(3, 4, 5)
    for cls in (nn.BatchNorm1d, nn.GroupNorm, nn.InstanceNorm1d):
        monkeypatch.setattr(cls, "forward", lambda self, x: x + 1)
    assert torch.equal(model(x), x + 3)
    assert "not torch's own" in patch(nn.BatchNorm1d(4)).left[""]


def test_lazy_modules_can_be_replaced_once_they_are_initialized():
    model = nn.Sequential(nn.LazyBatchNorm1d())
    model(make(3, 4))
    assert patch(model).replaced


def test_modules_on_the_meta_device_are_patched_and_filled_later():
    with torch.device("meta"):
        model = cnn()
    assert len(patch(model).replaced) == 3
    assert model(torch.empty(2, 3, 8, 8, device="meta")).shape == (2, 8, 8, 8)
    filled, x, _ = net("cnn")
    model.load_state_dict(filled.state_dict(), assign=True)
    close_to_torch(model(x), filled(x), 2048)


def test_a_patched_norm_can_be_folded_into_its_convolution_and_made_a_sync_batch_norm():
    model, x, _ = net("cnn")
    model(x)
    model.eval()
    patch(model)
    expected = model[1](model[0](x))
    close_to_torch(fuse_conv_bn_eval(model[0], model[1])(x), expected, 256)
    assert isinstance(nn.SyncBatchNorm.convert_sync_batchnorm(model)[1], nn.SyncBatchNorm)


def test_one_value_per_group_gives_the_bias_in_a_patched_batch_of_one():
    module = nn.GroupNorm(4, 4)
    nn.init.normal_(module.bias)
    patch(module)
    assert torch.equal(module(make(1, 4, 1)), module.bias.view(1, 4, 1))
    close_to_torch(module(make(2, 4, 1)), module.bias.view(1, 4, 1).expand(2, 4, 1))


def test_autocast():
    original, x, _ = net("cnn")
    model = copy.deepcopy(original)
    patch(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected = model(x), original(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
