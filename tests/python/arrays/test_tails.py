"""The elements behind the end of a row must not reach its sums, whatever the row holds."""

from __future__ import annotations

import normkit
import numpy as np
import pytest


@pytest.mark.parametrize("n", [1, 4, 8, 24, 65, 96])
def test_gradient_of_a_row_far_from_zero_is_finite(n: int) -> None:
    x = np.full((1, n), 1e37, np.float32)
    dx = normkit.layer_norm_backward(np.arange(n, dtype=np.float32)[None], x, output_mask=(True, False, False))[0]
    assert np.isfinite(dx).all()


def test_one_element_with_a_tiny_eps_has_no_gradient() -> None:
    x, dy = np.full((1, 1), 3.7, np.float32), np.ones((1, 1), np.float32)
    assert normkit.layer_norm_backward(dy, x, eps=1e-300, output_mask=(True, False, False))[0] == 0


@pytest.mark.parametrize("mode, rstd", [("inside", 1e-5**-0.5), ("outside", 1e5), ("clamp", 1e5)])
def test_constant_row_near_the_largest_number_keeps_its_eps(mode: str, rstd: float) -> None:
    y, _, r = normkit.layer_norm(np.full((1, 4), 1.7e308), return_stats=True, eps=1e-5, eps_mode=mode)
    assert (y == 0).all()
    np.testing.assert_allclose(r, rstd, rtol=1e-12)
