"""Other versions of torch lack some of the names that the fast paths use: everything still works without them."""

import subprocess
import sys

SCRIPT = """
import torch, torch._dynamo
del torch.Tensor.__dlpack_c_exchange_api__
lacking = [(torch._C, "_are_functorch_transforms_active"), (torch.compiler, "is_dynamo_compiling")]
kept = [getattr(*l) for l in lacking]
for l in lacking:
    delattr(*l)
import normkit.torch
for l, value in zip(lacking, kept):  # torch itself needs them
    setattr(*l, value)
F, T = normkit.torch.functional, torch.nn.functional
for dtype in (torch.float32, torch.bfloat16):
    x, w = torch.randn(4, 16).to(dtype).requires_grad_(), torch.rand(16).to(dtype).requires_grad_()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            y = F.layer_norm(x, (16,), w)
            assert type(y) is torch.Tensor and y.requires_grad == grad
            torch.testing.assert_close(y, T.layer_norm(x, (16,), w))
    for a, b in zip(torch.autograd.grad(y.sum(), (x, w)), torch.autograd.grad(T.layer_norm(x, (16,), w).sum(), (x, w))):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    x, w = torch.randn(4, 6, 5).to(dtype).requires_grad_(), torch.rand(6).to(dtype).requires_grad_()
    results = []
    for f in (F, T):
        stats = torch.zeros(6).to(dtype), torch.ones(6).to(dtype)
        y = f.batch_norm(x, *stats, w, training=True)
        results.append((y, *stats, torch.autograd.grad(y.square().sum(), w)[0]))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
x, w = torch.randn(4, 16), torch.rand(16)
torch.testing.assert_close(torch.vmap(lambda t: F.rms_norm(t, (16,)))(x), F.rms_norm(x, (16,)))
model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.RMSNorm(16))
expected = model(x.float())
assert len(normkit.torch.patch(model).replaced) == 2
torch.testing.assert_close(model(x.float()), expected)
"""


def test_names_that_other_versions_of_torch_lack_are_not_needed():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
