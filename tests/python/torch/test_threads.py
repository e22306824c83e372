"""One thread pool in the process, torch's own work undisturbed, and no dependence on the state of the threads."""

import subprocess
import sys

import pytest
import torch
from torch_helpers import KINDS, call, make

# Runs in a fresh process: imports in the given order, then torch's work before, between and after ours.
SCRIPT = """
import re, sys
for name in {order!r}:
    __import__(name)
import torch, normkit, normkit.torch
torch.manual_seed(0)
a, x = torch.randn(300, 300), torch.randn(256, 1024)
matmul, gelu = a @ a, torch.nn.functional.gelu(x)
for threads in (2, 1, 2):
    torch.set_num_threads(threads)
    y = normkit.torch.functional.layer_norm(x, (1024,))
    z = normkit.rms_norm(x, threads=2)
    assert torch.equal(y, normkit.layer_norm(x, threads=1)) and torch.equal(z, normkit.rms_norm(x, threads=1))
    assert torch.get_num_threads() == threads
    torch.testing.assert_close(a @ a, matmul)
    torch.testing.assert_close(torch.nn.functional.gelu(x), gelu)
runtime = re.compile(r"/lib(gomp|omp|iomp5)[-.\\w]*\\.so")
loaded = {{line.split()[-1] for line in open("/proc/self/maps") if runtime.search(line)}}
print(sorted(loaded))
assert len(loaded) == 1, loaded
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize("order", [("torch", "normkit"), ("normkit", "torch"), ("normkit.torch",)], ids=str)
def test_one_openmp_runtime_in_either_import_order(order):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(order=order)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libgomp" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_torchs_threads(kind):
    x, w = make(300, 1024, requires_grad=True), make(1024, requires_grad=True)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            y = call(kind, x, w)
            results.append((y, *torch.autograd.grad(y, (x, w), y.detach())))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [2, 600])
def test_flushing_of_subnormals_in_torch_does_not_change_bits(kind, rows):
    x = make(rows, 512, scale=1e-39, mean=0)
    w = make(512, scale=1e-3, mean=0, seed=1)
    assert (x != 0).any()
    expected = call(kind, x, w, eps=1e-5)
    assert ((expected != 0) & (expected.abs() < 2**-126)).any() or kind == "l2_norm"
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        result = call(kind, x, w, eps=1e-5)
        flushed = (torch.tensor([2.0**-127]) * 1.0).view(torch.int32).item() == 0
    finally:
        torch.set_flush_denormal(False)
    assert flushed  # torch itself did flush, so the comparison below means something
    assert torch.equal(result.view(torch.int32), expected.view(torch.int32))
