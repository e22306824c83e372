"""patch and unpatch: what is replaced, by which definition, what is left and why, and that nothing else changes."""

import copy
import io

import normkit.torch
import pytest
import torch
from normkit.torch import patch, unpatch
from torch import nn
from torch.nn.utils import parametrize
from torch_helpers import close_to_torch, make

WIDTH = 32


class Norm(nn.Module):
    """A norm that is written out, with everything that a definition can vary. eps_name: where eps is kept."""

    def __init__(self, width=WIDTH, eps=1e-6, weight=True, bias=False):
        super().__init__()
        self.epsilon = eps
        self.weight = nn.Parameter(torch.rand(width) + 0.5) if weight else None
        if bias:
            self.bias = nn.Parameter(torch.randn(width))


class LlamaNorm(Norm):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * h.to(x.dtype)


class GemmaNorm(Norm):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (h * (1.0 + self.weight.float())).type_as(x)


class PaperNorm(Norm):
    def forward(self, x):
        h = x.float()
        h = h / (h.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + self.epsilon)
        return (self.weight.float() * h).to(x.dtype)


class HardCodedNorm(Norm):
    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 3e-4) * self.weight.float()).to(x.dtype)


class WeightlessNorm(Norm):
    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


class ScaleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([3.0]))
        self.eps = 1e-5

    def forward(self, x):
        h = x.float() / x.float().norm(dim=-1, keepdim=True).clamp(min=self.eps)
        return (self.g.float() * h).to(x.dtype)


class WrittenLayerNorm(Norm):
    def forward(self, x):
        h = x.float() - x.float().mean(-1, keepdim=True)
        h = h / torch.sqrt(h.square().mean(-1, keepdim=True) + self.epsilon)
        return (h * self.weight.float() + self.bias.float()).to(x.dtype)


class PartialNorm(Norm):
    """pRMSNorm: the statistics of the first half."""

    def forward(self, x):
        part = x[..., : x.shape[-1] // 2]
        return x * torch.rsqrt(part.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class SampleStdNorm(Norm):
    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.epsilon) + self.bias


class GroupedNorm(Norm):
    def forward(self, x):
        h = x.unflatten(-1, (2, -1))
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.epsilon)).flatten(-2) * self.weight


class BatchCoupledNorm(Norm):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean() + self.epsilon) * self.weight


class DropoutNorm(LlamaNorm):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class WideningNorm(Norm):
    def forward(self, x):
        h = x.float()
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.epsilon) * self.weight.float()


class RaisingNorm(Norm):
    def forward(self, x, gate):
        return x * gate


class InPlaceNorm(Norm):
    def forward(self, x):
        return x.mul_(torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)).mul_(self.weight)


class ChannelsFirstLayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Float32LayerNorm(nn.LayerNorm):
    def forward(self, x):
        weight, bias = self.weight.float(), self.bias.float()
        return nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


REPLACED = {
    "torch LayerNorm": (lambda: nn.LayerNorm(WIDTH, eps=1e-12), "layer_norm eps=1e-12"),
    "torch LayerNorm, two dims": (lambda: nn.LayerNorm((4, WIDTH)), "layer_norm eps=1e-05"),
    "torch LayerNorm, no affine": (lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), "layer_norm eps=1e-05"),
    "torch LayerNorm, no bias": (lambda: nn.LayerNorm(WIDTH, bias=False), "layer_norm eps=1e-05"),
    "torch RMSNorm, default eps": (lambda: nn.RMSNorm(WIDTH), "rms_norm eps=1.19209e-07"),
    "torch RMSNorm": (lambda: nn.RMSNorm(WIDTH, eps=1e-3), "rms_norm eps=0.001"),
    "cast before the weight": (LlamaNorm, "rms_norm eps=1e-06 rounding=before_weight (bf16, f16)"),
    "one plus weight": (GemmaNorm, "rms_norm eps=1e-06 weight_offset=1 (f32, bf16, f16"),
    "eps outside": (lambda: PaperNorm(eps=1e-3), "rms_norm eps=0.001 eps_mode=outside (f32"),
    "eps in the code": (HardCodedNorm, "rms_norm eps=0.0003 (f32, bf16, f16"),
    "no eps": (lambda: GemmaNorm(eps=0.0), "rms_norm eps=0 weight_offset=1"),
    "no weight": (lambda: WeightlessNorm(weight=False), "rms_norm eps=1e-06 (f32"),
    "scalar weight": (ScaleNorm, "l2_norm eps=1e-05"),
    "LayerNorm written out": (lambda: WrittenLayerNorm(bias=True), "layer_norm eps=1e-06 (f32, bf16, f16"),
    "subclass that computes in f32": (lambda: Float32LayerNorm(WIDTH), "layer_norm eps=1e-05 (f32"),
}
LEFT = {
    "partial": (PartialNorm, "none of the definitions"),
    "sample deviation": (lambda: SampleStdNorm(bias=True), "none of the definitions"),
    "grouped": (GroupedNorm, "none of the definitions"),
    "coupled rows": (BatchCoupledNorm, "none of the definitions"),
    "dropout": (DropoutNorm, "training and evaluation"),
    "two inputs": (RaisingNorm, "does not take"),
    "in place": (InPlaceNorm, "writes to its input"),
    "channels first": (lambda: ChannelsFirstLayerNorm(WIDTH), "does not take"),
    "f32 result for bf16": (lambda: WideningNorm().bfloat16(), "for bf16 input it returns f32"),
    "local response norm": (lambda: nn.LocalResponseNorm(3), ""),
    "sync batch norm": (lambda: nn.SyncBatchNorm(WIDTH), "SyncBatchNorm"),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_proven_definitions_are_replaced_and_give_the_same_results(name, dtype):
    make_module, definition = REPLACED[name]
    module = make_module().to(dtype)
    x = make(5, 4, WIDTH, dtype=dtype)
    expected = module(x)
    report = patch(module)
    assert list(report.replaced) == [""] and not report.left, str(report)
    assert definition in report.replaced[""]
    result = module(x)
    if dtype == torch.float32:
        close_to_torch(result, expected)
    else:
        assert (result != expected).sum() <= 2  # the sums are formed in another order
        close_to_torch(result, expected)
    assert unpatch(module) == 1
    assert torch.equal(module(x), expected)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_proven_is_left_alone_with_a_reason(name):
    make_module, reason = LEFT[name]
    module = nn.Sequential(make_module())
    cls, state = type(module[0]), copy.deepcopy(module.state_dict())
    report = patch(module)
    assert list(report.left) == ["0"] and not report.replaced, str(report)
    assert reason in report.left["0"] and report.left["0"]
    assert type(module[0]) is cls and unpatch(module) == 0
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())


def small_model():
    torch.manual_seed(0)
    norm = LlamaNorm()
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    return nn.ModuleDict({"a": linear[0], "n": norm, "b": linear[1], "ln": nn.LayerNorm(WIDTH)})


def run(model, x):
    return model["ln"](model["b"](model["n"](model["a"](x))))


def test_everything_around_the_forward_stays():
    model, calls = small_model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["n"].register_forward_hook(lambda *_: calls.append("hook"))
    model.eval()
    ids = [id(m) for m in model.modules()], [id(p) for p in model.parameters()]
    keys, versions = list(model.state_dict()), [p._version for p in model.parameters()]
    random = torch.get_rng_state()
    report = patch(model)
    assert sorted(report.replaced) == ["ln", "n"] and not calls
    assert torch.equal(torch.get_rng_state(), random)
    assert ids == ([id(m) for m in model.modules()], [id(p) for p in model.parameters()])
    assert keys == list(model.state_dict()) and versions == [p._version for p in model.parameters()]
    assert not model["n"].training and isinstance(model["n"], LlamaNorm) and isinstance(model["ln"], nn.LayerNorm)
    assert type(model["n"]).__name__ == "LlamaNorm" and "LayerNorm((32,)" in repr(model)
    run(model, make(3, WIDTH)).square().mean().backward()
    before = model["n"].weight.detach().clone()
    optimizer.step()
    assert calls == ["hook"] and not torch.equal(model["n"].weight, before)
    unpatch(model)
    assert type(model["n"]) is LlamaNorm and type(model["ln"]) is nn.LayerNorm
    assert "_normkit_definition" not in vars(model["n"])


def test_gradients_agree_with_the_original():
    for dtype in (torch.float32, torch.bfloat16):
        module = LlamaNorm().to(dtype)
        x, dy = make(7, WIDTH, dtype=dtype, requires_grad=True), make(7, WIDTH, dtype=dtype, seed=1)
        expected = torch.autograd.grad(module(x), (x, module.weight), dy)
        patch(module)
        for a, b in zip(torch.autograd.grad(module(x), (x, module.weight), dy), expected, strict=True):
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-5  # the original sums its weight gradient in bf16
            torch.testing.assert_close(a, b, rtol=bound, atol=bound)


def test_shared_modules_and_tied_weights():
    shared, other = LlamaNorm(), LlamaNorm()
    other.weight = shared.weight
    model = nn.ModuleList([shared, nn.ModuleList([shared]), other])
    report = patch(model)
    assert sorted(report.replaced) == ["0", "1.0", "2"]
    assert model[0] is model[1][0] and model[0].weight is model[2].weight
    assert unpatch(model) == 2


def test_patching_twice_and_parts_first():
    model = small_model()
    first = patch(model["n"])
    assert list(first.replaced) == [""]
    assert patch(model).replaced == patch(model).replaced and unpatch(model) == 2 and unpatch(model) == 0
    own = nn.Sequential(normkit.torch.RMSNorm(8))
    report = patch(own)
    assert not report.replaced and not report.left and not report.unexamined


def test_the_report_can_be_read():
    text = str(patch(nn.ModuleList([LlamaNorm() for _ in range(5)] + [PartialNorm()])))
    assert text.startswith("5 norms replaced, 1 left")
    assert "rms_norm eps=1e-06" in text and "none of the definitions" in text and "... (5)" in text


@pytest.mark.parametrize("how", ["deepcopy", "save"])
def test_patched_models_can_be_copied_and_saved(how):
    model, x = small_model(), make(3, WIDTH)
    patch(model)
    expected = run(model, x)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert torch.equal(run(other, x), expected)
    assert other["n"].weight is not model["n"].weight
    assert unpatch(other) == 2 and type(other["n"]) is LlamaNorm
    assert torch.equal(run(model, x), expected)


def test_calls_outside_the_proof_go_to_the_original():
    module = LlamaNorm()
    patch(module)
    x = make(3, WIDTH)
    assert module(x.bfloat16()).dtype == torch.float32  # what this definition does with an f32 weight
    assert module(x.double()).dtype == torch.float64
    assert torch.equal(module(x=x), LlamaNorm.forward(module, x))
    with pytest.raises(RuntimeError):
        module(make(3, WIDTH + 1))
    with pytest.raises(TypeError):
        module(x, x)
    close_to_torch(torch.vmap(module)(x), module(x))
    close_to_torch(torch.func.grad(lambda t: module(t).sin().sum())(x), LlamaNorm.grad(module, x))


def _grad(module, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(LlamaNorm.forward(module, x).sin().sum(), x)[0]


LlamaNorm.grad = staticmethod(_grad)


def test_converted_and_changed_modules_follow():
    module, reference = LlamaNorm(), LlamaNorm()
    reference.load_state_dict(module.state_dict())
    patch(module)
    x = make(64, WIDTH)
    for m in (module, reference):
        m.bfloat16()
    assert (module(x.bfloat16()) != reference(x.bfloat16())).sum() <= 2
    for m in (module, reference):
        m.float()
        m.epsilon = 0.5
    close_to_torch(module(x), reference(x))


def test_an_eps_that_is_none_or_an_integer_may_change_too():
    for module in (nn.RMSNorm(WIDTH), LlamaNorm(eps=0)):
        x, name = make(4, WIDTH), "eps" if isinstance(module, nn.RMSNorm) else "epsilon"
        assert patch(module).replaced
        before = module(x)
        setattr(module, name, 0.5)
        changed = module(x)
        unpatch(module)
        assert torch.equal(changed, module(x)) and not torch.allclose(changed, before, rtol=1e-3)


def test_what_the_caller_has_switched_on_does_not_disturb_the_proof():
    module = LlamaNorm()
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert "rms_norm eps=1e-06" in patch(module).replaced[""]


def test_parametrized_after_and_before():
    class Twice(nn.Module):
        def forward(self, w):
            return 2 * w

    module, x = nn.LayerNorm(WIDTH), make(3, WIDTH)
    expected = 2 * module(x)
    patch(module)
    parametrize.register_parametrization(module, "weight", Twice())
    close_to_torch(module(x), expected)
    assert unpatch(module) == 1
    close_to_torch(module(x), expected)
    assert "submodules" in patch(module).left[""]


def test_replaced_forwards_and_odd_modules_are_left():
    module = LlamaNorm()
    module.forward = lambda x: x
    assert "replaced on the instance" in patch(module).left[""]
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    assert list(patch(lazy).left) == ["1"]
    holding = LlamaNorm()
    holding.scale = torch.ones(1)
    assert "holds tensors" in patch(holding).left[""]


def test_patched_models_compile_and_export_without_a_graph_break():
    torch._dynamo.reset()
    module, x = LlamaNorm(), make(3, WIDTH, requires_grad=True)
    patch(module)
    expected = torch.autograd.grad(module(x).sin().sum(), x)[0]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.autograd.grad(compiled(x).sin().sum(), x)[0], expected)
    assert "normkit.rms_norm" in torch.export.export(module, (x.detach(),)).graph_module.code


def test_meta_modules_are_patched_and_filled_later():
    with torch.device("meta"):
        model = nn.Sequential(nn.LayerNorm(WIDTH))
    assert list(patch(model).replaced) == ["0"]
    assert model(torch.empty(2, WIDTH, device="meta")).device.type == "meta"
    state = nn.Sequential(nn.LayerNorm(WIDTH)).state_dict()
    model.load_state_dict(state, assign=True)
    close_to_torch(model(make(2, WIDTH)), nn.LayerNorm(WIDTH)(make(2, WIDTH)))


def test_encoder_layers_of_torch_stay_right():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True)
    x = make(2, 5, WIDTH)
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(1)
        expected = layer(x)
        patch(layer)
        torch.manual_seed(1)
        close_to_torch(layer(x), expected)
        unpatch(layer)
