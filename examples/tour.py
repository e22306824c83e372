"""A tour of normkit in Python. Run it whole, or cell by cell in an editor that knows `# %%` (VS Code, Spyder, PyCharm).

Every cell checks what it says. The last part needs PyTorch.
"""

# ruff: noqa: E402 (imports stand in the cells that need them)

# %% [markdown]
# ## 1. Arrays
# The functions take NumPy, PyTorch and JAX arrays in CPU memory and give back the caller's kind.

# %%
import normkit
import numpy as np

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 768), dtype=np.float32) + 3
weight = rng.uniform(0.5, 1.5, 768).astype(np.float32)
bias = rng.standard_normal(768, dtype=np.float32)

y = normkit.layer_norm(x, weight, bias, eps=1e-5)

wide = x.astype(np.float64)
exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * weight + bias
print("layer_norm: largest error against f64", f"{np.abs(y - exact).max():.1e}")
assert np.abs(y - exact).max() < 2e-6

# %% [markdown]
# `out` saves the allocation, which costs more than the norm when the array is large. It may be x itself.

# %%
buffer = np.empty_like(x)
assert normkit.rms_norm(x, weight, out=buffer) is buffer
in_place = x.copy()
normkit.rms_norm(in_place, weight, out=in_place)
assert np.array_equal(in_place, buffer)

# %% [markdown]
# The residual add of a transformer block is part of the call: h = x + residual, y = rms_norm(h), in one pass.

# %%
residual = rng.standard_normal(x.shape, dtype=np.float32)
y, h = normkit.rms_norm(x, weight, residual=residual)
assert np.array_equal(h, x + residual)
assert np.array_equal(y, normkit.rms_norm(h, weight))
print("rms_norm with residual: the bits of two separate steps")

# %% [markdown]
# Gradients: the backward takes the statistics that the forward returned. `dresidual_out` is the gradient that arrives
# at h from the rest of the network; it joins dx.

# %%
y, h, rstd = normkit.rms_norm(x, weight, residual=residual, return_stats=True)
dy, dh = np.ones_like(y), np.full_like(h, 0.1)
dx, dweight, _ = normkit.rms_norm_backward(dy, h, weight, rstd=rstd, dresidual_out=dh)
print("gradients:", dx.shape, dweight.shape, f"rstd in {rstd.dtype}")
step = 1e-4 * rng.standard_normal(x.shape)
ahead, behind = (normkit.rms_norm(h + s, weight.astype(np.float64)) for s in (step, -step))  # in f64
assert np.isclose(((ahead - behind) / 2 * dy).sum() + (step * dh).sum(), (dx * step).sum(), rtol=1e-3)

# %% [markdown]
# ## 2. The contract: the same bits
# A row's result depends on nothing but the row and the parameters: not on threads, on the batch around it, on strides
# or alignment, and not on the instruction set (try NORMKIT_TARGET=baseline). `docs/numerics.md` is the contract.

# %%
y = normkit.layer_norm(x, weight, bias)
for threads in (1, 2, 7):
    assert np.array_equal(y, normkit.layer_norm(x, weight, bias, threads=threads))
assert np.array_equal(y[10:13], normkit.layer_norm(x[10:13], weight, bias))  # a slice of the batch
assert np.array_equal(y[::-3], normkit.layer_norm(x[::-3], weight, bias))  # some rows, backwards
shifted = np.empty(x.size + 1, np.float32)[1:].reshape(x.shape)  # not aligned
shifted[:] = x
assert np.array_equal(y, normkit.layer_norm(shifted, weight, bias))
columns = np.asfortranarray(x)  # rows that are not contiguous
assert np.array_equal(y, normkit.layer_norm(columns, weight, bias))
print(f"same bits for threads, slices, strides and alignment (instruction set {normkit.target()})")

# %% [markdown]
# And the right bits: the textbook formula E[x²] - E[x]² fails on the first of these rows in f32, and the sum of squares
# overflows in the second.

# %%
far = (1e5 + rng.standard_normal(768)).astype(np.float32)
huge = 1e30 * rng.standard_normal(768).astype(np.float32)
for name, row in (("mean of 1e5 deviations", far), ("values of 1e30", huge)):
    wide = row.astype(np.float64)
    exact = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    error = np.abs(normkit.layer_norm(row) - exact).max()
    print(f"{name}: largest error {error:.1e}")
    assert error < 2e-6

# %% [markdown]
# Mistakes are exceptions that name the operation and the operand, before anything is written.

# %%
try:
    normkit.rms_norm(x, weight[:-1])
    raise SystemExit("expected a ValueError")
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ## 3. PyTorch
# `functional` has torch's signatures, and the options of the arrays API as keywords. bf16 is computed in f32 and
# rounded once.

# %%
import normkit.torch
import normkit.torch.functional as NF
import torch

t, w = torch.from_numpy(x), torch.from_numpy(weight)
assert np.array_equal(NF.rms_norm(t, (768,), w, eps=1e-5).numpy(), normkit.rms_norm(x, weight))
half = NF.rms_norm(t.bfloat16(), (768,), w.bfloat16(), eps=1e-5)
assert torch.equal(half, NF.rms_norm(t.bfloat16().float(), (768,), w.bfloat16().float(), eps=1e-5).bfloat16())
print("functional:", half.dtype, tuple(half.shape))

# %% [markdown]
# The modules are torch's own, with another forward: same arguments, same `state_dict`. Autograd works, also twice.

# %%
theirs = torch.nn.LayerNorm(768)
ours = normkit.torch.LayerNorm(768)
ours.load_state_dict(theirs.state_dict())
gradients = []
for module in (theirs, ours):
    leaf = t.clone().requires_grad_()
    (module(leaf) * torch.from_numpy(residual)).sum().backward()
    gradients.append(leaf.grad)
torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
print("LayerNorm: gradients as torch's")

# %% [markdown]
# `patch` takes a model as it is. It goes by what a module computes, not by its name: it runs each norm on crafted rows.
# Here is a Gemma-like norm (1 + weight), a plain one, and one that is no norm of rows at all.

# %%


class GemmaNorm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1 + self.weight.float())).to(x.dtype)


class BatchCentreNorm(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


model = torch.nn.Sequential(
    torch.nn.Linear(768, 768), GemmaNorm(768), torch.nn.Linear(768, 768), torch.nn.LayerNorm(768), BatchCentreNorm()
)
with torch.no_grad():
    before = model(t)
    report = normkit.torch.patch(model)
    after = model(t)
print(report)
assert "weight_offset=1" in report.replaced["1"]
assert set(report.left) == {"4"}
torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)

# %% [markdown]
# Parameters, hooks and `state_dict` stay what they were, and `unpatch` gives the modules their own forward back.

# %%
assert isinstance(model[1], GemmaNorm)
assert normkit.torch.unpatch(model) == 2
with torch.no_grad():
    assert torch.equal(model(t), before)
print("unpatched: the first result again")
