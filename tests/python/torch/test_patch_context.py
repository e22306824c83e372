"""What patch must see around a module: tensors of others, frozen parameters, autocast, threads, other inputs."""

import sys
import threading
import time
import warnings

import normkit.torch
import pytest
import torch
from normkit.torch import patch
from torch import nn
from torch_helpers import close_to_torch, make

WIDTH = 32
GAIN = nn.Parameter(torch.ones(()))


class Norm(nn.Module):
    """An RMSNorm with a bias and places for what a subclass does otherwise."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return self.normalized(x) * self.weight + self.bias

    def normalized(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class WeightlessNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def why_left(module):
    cls = type(module)
    report = patch(nn.ModuleList([module]))
    assert not report.replaced and type(module) is cls, str(report)
    return report.left["0"]


class GlobalGainNorm(Norm):
    def forward(self, x):
        return super().forward(x) * GAIN


class PropertyGainNorm(Norm):
    @property
    def gain(self):
        return GAIN

    def forward(self, x):
        return super().forward(x) * self.gain


@pytest.mark.parametrize("cls", [GlobalGainNorm, PropertyGainNorm])
def test_tensors_of_others_that_get_gradients_are_seen(cls):
    assert "neither its input nor its parameter" in why_left(cls())


def test_tensors_of_others_in_a_closure_are_seen():
    scale = torch.ones(3, requires_grad=True) * 1.0  # no leaf itself

    class ClosureGainNorm(Norm):
        def forward(self, x):
            return super().forward(x) * scale[0]

    assert "neither its input nor its parameter" in why_left(ClosureGainNorm())


class DetachedIfFrozenNorm(Norm):
    def forward(self, x):
        y = super().forward(x)
        return y if self.weight.requires_grad else y.detach()


class HalvedIfFrozenNorm(Norm):
    """Its result is the same, its gradient by x half of it."""

    def forward(self, x):
        return super().forward(x if self.weight.requires_grad else x.detach() / 2 + x / 2)


class DetachedFirstNorm(Norm):
    def forward(self, x):
        y = super().forward(x)
        return y if x.requires_grad else y.detach()


class DetachedInEvaluationNorm(Norm):
    def forward(self, x):
        return super().forward(x if self.training else x.detach() / 2 + x / 2)


@pytest.mark.parametrize("cls", [DetachedIfFrozenNorm, HalvedIfFrozenNorm, DetachedFirstNorm, DetachedInEvaluationNorm])
def test_gradients_are_compared_where_only_some_inputs_have_one(cls):
    assert "gradient" in why_left(cls())


class ClampedBiasNorm(Norm):
    def forward(self, x):
        return self.normalized(x) * self.weight + self.bias.clamp(-10, 10)


class FlushedWeightNorm(Norm):
    def forward(self, x):
        return self.normalized(x) * torch.where(self.weight.abs() < 1e-4, 0, self.weight) + self.bias


class FiveDimsNorm(Norm):
    def forward(self, x):
        return super().forward(x) * (2 if x.dim() == 5 else 1)


class InfiniteGuardNorm(Norm):
    def forward(self, x):
        return super().forward(torch.where(x.isinf(), 0, x))


class InfiniteRowGuardNorm(Norm):
    def forward(self, x):
        return torch.where(x.isinf().any(-1, keepdim=True), 0, super().forward(x))


ODD = [ClampedBiasNorm, FlushedWeightNorm, InfiniteGuardNorm, InfiniteRowGuardNorm, FiveDimsNorm]


@pytest.mark.parametrize("cls", ODD)
def test_sizes_dims_and_infinite_rows_are_compared(cls):
    why_left(cls())


class SixDimsNorm(Norm):
    def forward(self, x):
        return super().forward(x) * (2 if x.dim() >= 6 else 1)


def test_more_dims_than_were_tried_go_to_the_original():
    module, twodims = SixDimsNorm(), nn.LayerNorm((4, WIDTH))
    assert patch(module).replaced and patch(twodims).replaced
    x = make(2, 1, 2, 1, 2, WIDTH)
    torch.testing.assert_close(module(x), 2 * Norm.forward(module, x))
    x = make(2, 1, 2, 1, 2, 4, WIDTH)
    assert torch.equal(twodims(x), nn.LayerNorm.forward(twodims, x))


@pytest.mark.parametrize("x", [torch.tensor(2.0), torch.empty(3, 0), torch.empty(2, 0, 0)], ids=lambda x: str(x.shape))
def test_rows_without_elements_go_to_the_original(x):
    module = WeightlessNorm()
    assert patch(module).replaced

    def answer(f):
        try:
            return f(x)
        except Exception as error:
            return type(error)

    expected, got = answer(lambda x: WeightlessNorm.forward(module, x)), answer(module)
    assert got is expected if isinstance(expected, type) else torch.equal(got, expected)


class AutocastNorm(Norm):
    def forward(self, x):
        y = super().forward(x)
        return y.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else y


class AutocastRoundingNorm(Norm):
    def forward(self, x):
        y = super().forward(x)
        return y.to(torch.get_autocast_dtype("cpu")).to(y.dtype) if torch.is_autocast_enabled("cpu") else y


@pytest.mark.parametrize("cls", [AutocastNorm, AutocastRoundingNorm])
def test_modules_that_heed_autocast_run_their_own_forward_under_it(cls):
    module, x = cls(), make(4, WIDTH)
    assert patch(module).replaced
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = module(x), cls.forward(module, x)
        assert got.dtype == expected.dtype and torch.equal(got, expected)
    assert module(x).dtype == torch.float32


def test_modules_that_autocast_does_not_change_are_normkits_under_it(monkeypatch):
    module, x = Norm(), make(4, WIDTH)
    patch(module)
    monkeypatch.setattr(normkit.torch._patch, "fast", lambda o, x, weight, bias: torch.full_like(x, 7.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (module(x) == 7.0).all()


class Overlap:
    """Counts how many threads are inside at once."""

    def __init__(self):
        self.now = self.most = 0

    def __call__(self):
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.0005)
        self.now -= 1


OVERLAP = Overlap()


class SlowNorm(Norm):
    def forward(self, x):
        OVERLAP()
        return super().forward(x)


def test_threads_patch_one_after_another_and_leave_the_process_as_it_was():
    def state():
        return sys.stdout, sys.stderr, warnings.filters, list(warnings.filters), torch.get_num_threads()

    before, reports = state(), []
    models = [nn.ModuleList([SlowNorm()]) for _ in range(3)]
    threads = [threading.Thread(target=lambda m=m: reports.append(patch(m))) for m in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    after = state()
    assert OVERLAP.most == 1 and all(a is b for a, b in zip(before[:3], after[:3], strict=True))
    assert before[3:] == after[3:] and [len(r.replaced) for r in reports] == [1, 1, 1]


def test_what_other_threads_print_is_neither_swallowed_nor_noticed(capsys):
    class WaitingNorm(Norm):
        """While it runs another thread prints."""

        def forward(self, x):
            other = threading.Thread(target=lambda: print("from elsewhere", file=stream))
            stream = sys.stdout
            other.start()
            other.join()
            return super().forward(x)

    assert patch(WaitingNorm()).replaced
    assert "from elsewhere" in capsys.readouterr().out


def test_a_stream_that_another_thread_kept_goes_on_to_the_one_behind(capsys):
    kept = []

    class KeepingNorm(Norm):
        def forward(self, x):
            if not kept:
                kept.append(sys.stdout)
            return super().forward(x)

    patch(KeepingNorm())
    print("later", file=kept[0])
    assert capsys.readouterr().out == "later\n"


def test_a_module_is_probed_outside_the_callers_autocast():
    class MatmulNorm(Norm):
        """Under autocast its sum is one of bf16."""

        def normalized(self, x):
            return x * torch.rsqrt((x.square() @ torch.full((WIDTH, 1), 1 / WIDTH, dtype=x.dtype)) + self.eps)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = patch(MatmulNorm())
    assert "rms_norm eps=1e-06" in report.replaced[""]
    module, x = MatmulNorm(), make(4, WIDTH)
    patch(module)
    close_to_torch(module(x), MatmulNorm.forward(module, x))
