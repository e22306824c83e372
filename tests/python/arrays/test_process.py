"""What a process does around the calls: Python threads, fork, interpreter exit, flush-to-zero, thread counts."""

import os
import subprocess
import sys
import threading

import normkit
import numpy as np
import pytest
import torch
from arrays.kinds import OPS, random, same_bits


def data(rows=512, size=1024):
    rng = np.random.default_rng(13)
    return random(rng, (rows, size), np.float32), random(rng, size, np.float32)


def test_many_python_threads_at_once():
    """Each thread works on its own arrays, small and large, while others compute with torch."""
    x, w = data()
    want = {op: (getattr(normkit, op)(x, w, threads=1), getattr(normkit, op)(x[:2], w)) for op in OPS}
    gradients = normkit.rms_norm_backward(x, x, w, threads=1)
    product = torch.from_numpy(x) @ torch.from_numpy(x).T
    faults, start = [], threading.Barrier(8)

    def work(index):
        try:
            mine, out = (
                (x.copy(), np.empty_like(x)) if index % 2 else (torch.from_numpy(x.copy()), torch.empty(x.shape))
            )
            own_w = w if index % 2 else torch.from_numpy(w)
            start.wait()
            for i in range(15):
                op = OPS[(index + i) % 3]
                assert same_bits(getattr(normkit, op)(mine, own_w, out=out, threads=1 + i % 3), want[op][0])
                assert same_bits(getattr(normkit, op)(mine[:2], own_w), want[op][1])
                assert same_bits(normkit.rms_norm_backward(mine, mine, own_w)[1], gradients[1])
                if index == 0:
                    assert torch.equal(mine @ mine.T, product)
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


RELEASE = """
import sys, threading, numpy as np, normkit
sys.setswitchinterval(1000)  # the lock moves only when somebody gives it away
x = np.ones({shape}, np.float32)
out = np.empty_like(x)
ready, ran = threading.Event(), []
def other():
    ready.wait()
    ran.append(1)
t = threading.Thread(target=other)
t.start()
ready.set()
ran.clear()
before = len(ran)
for _ in range({calls}):
    normkit.rms_norm(x, out=out)
print(len(ran) > before)
t.join()
"""


@pytest.mark.parametrize(("shape", "released"), [((1 << 15, 1 << 10), True), ((2, 64), False)])
def test_pythons_lock_is_released_for_large_work_only(shape, released):
    code = RELEASE.format(shape=shape, calls=3 if released else 100)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == f"{released}\n", run.stderr


FORK = """
import os, sys, numpy as np, normkit
if sys.argv[1] == "torch":
    import torch
    torch.ones(512, 512) @ torch.ones(512, 512)
rng = np.random.default_rng(0)
x = rng.standard_normal((2000, 1024)).astype(np.float32)
call = lambda: [normkit.layer_norm(x, threads=2), *normkit.rms_norm_backward(x, x, threads=2)]
want = call()
pid = os.fork()
if pid == 0:
    same = all(a.tobytes() == b.tobytes() for a, b in zip(want, call()))
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(0 if same and call()[0].tobytes() == want[0].tobytes() else 1)
    os._exit(0 if same and os.waitpid(grandchild, 0)[1] == 0 else 1)
assert os.waitpid(pid, 0)[1] == 0
assert all(a.tobytes() == b.tobytes() for a, b in zip(want, call()))
print("same bits")
"""


@pytest.mark.parametrize("other", ["alone", "torch"])
def test_fork_after_use(other):
    run = subprocess.run([sys.executable, "-c", FORK, other], capture_output=True, text=True, timeout=120)
    assert run.stdout == "same bits\n", run.stderr


EXIT = """
import sys, threading, time, numpy as np, normkit
if {torch}:
    import torch
    make = lambda rows: torch.ones(rows, 512)
else:
    make = lambda rows: np.ones((rows, 512), np.float32)
def work(rows):
    x, out = make(rows), make(rows)
    started.release()
    while True:
        normkit.rms_norm(x, out=out, threads=2)
        if not {torch}:  # torch's own operators, its allocator among them, abort when their thread ends in them
            normkit.layer_norm(x)
started = threading.Semaphore(0)
for rows in (1, 1, 100, 4000, 4000):
    threading.Thread(target=work, args=(rows,), daemon=True).start()
for _ in range(5):
    started.acquire()
time.sleep(0.1)
print("end")
"""


@pytest.mark.parametrize("with_torch", [False, True])
@pytest.mark.parametrize("repeat", range(3))
def test_interpreter_exit_while_daemon_threads_compute(with_torch, repeat):
    code = EXIT.format(torch=with_torch)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


def test_flush_denormal_changes_no_bits():
    x = random(np.random.default_rng(1), (300, 200), np.float32) * np.float32(1e-38)
    tiny = np.full(200, 1e-39, np.float32)
    half = (np.arange(1, 65, dtype=np.float64) * 2.0**-24).astype(np.float16)[None]  # subnormal f16

    def call():
        return [
            *(normkit.layer_norm(x, eps=0.0, threads=t) for t in (1, 2)),
            normkit.rms_norm(x, tiny, eps=0.0, threads=2),
            *normkit.rms_norm_backward(x, x, eps=1.0, threads=2)[:2],
            normkit.rms_norm(half, eps=1.0),
        ]

    want = call()
    assert any(np.any((a != 0) & (np.abs(a.astype(np.float64)) < 1e-38)) for a in want)  # subnormal results
    torch.set_flush_denormal(True)
    try:
        flushed = call()
        assert float(torch.tensor([1e-39]) * 1) == 0.0  # the caller's own mode is back
    finally:
        torch.set_flush_denormal(False)
    for a, b in zip(flushed, want, strict=True):
        assert same_bits(a, b)


# Counts the threads of a process that has made one call. (torch.set_num_threads starts threads of its own.)
THREADS = """
import os, sys, numpy as np
{first}
import normkit
{second}
x = {array}
normkit.rms_norm(x)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize(
    ("first", "second", "array", "threads"),
    [
        ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "", "np.ones((4096, 1024), np.float32)", 1),
        ("import torch", "torch.get_num_threads = lambda: 1", "torch.from_numpy(np.ones((4096, 1024)))", 1),
        ("import torch", "torch.get_num_threads = lambda: 2", "torch.from_numpy(np.ones((4096, 1024)))", 2),
        ("os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[:2]))", "", "np.ones((4096, 1024), np.float32)", 2),
        ("", "", "np.ones((4, 64), np.float32)", 1),
    ],
)
def test_default_number_of_threads(first, second, array, threads):
    code = THREADS.format(first=first, second=second, array=array)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout == f"{threads}\n", run.stderr


def test_absurd_numbers_of_threads_are_cut():
    x, _ = data()
    assert same_bits(normkit.rms_norm(x, threads=2**31 - 1), normkit.rms_norm(x, threads=1))


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer keeps what was freed")
def test_nothing_leaks():
    """Many calls, results, errors and exports leave the memory of the process where it was."""
    x, w, bad = torch.ones(2, 64), np.ones(64, np.float32), np.ones(63, np.float32)

    def round_of_calls(count):
        for _ in range(count):
            normkit.rms_norm(x, w, return_stats=True)
            normkit.layer_norm(memoryview(w), residual=w)
            with pytest.raises(ValueError, match="weight"):
                normkit.rms_norm(x, bad)

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    round_of_calls(2000)
    before = resident()
    round_of_calls(20000)
    assert resident() - before < 2 << 20
