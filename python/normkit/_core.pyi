"""Types of the extension module. The shapes, types, defaults and errors stand in the docstrings of the functions."""

from typing import Any, Literal, Protocol, TypeAlias, TypeVar, overload

from typing_extensions import Buffer

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> object: ...

_Array: TypeAlias = _SupportsDLPack | Buffer  # NumPy, PyTorch and JAX arrays among others
_A = TypeVar("_A", bound=_Array)
_Rounding: TypeAlias = Literal["once", "before_weight"]
_EpsMode: TypeAlias = Literal["inside", "outside", "clamp"]
_ResidualStats: TypeAlias = Literal["rounded", "unrounded"]

@overload
def layer_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def layer_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> tuple[_A, _A]: ...
@overload
def layer_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, ...]: ...
@overload
def rms_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def rms_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> tuple[_A, _A]: ...
@overload
def rms_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, ...]: ...
@overload
def l2_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: None = None,
    eps: float = 1e-12,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def l2_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array,
    eps: float = 1e-12,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> tuple[_A, _A]: ...
@overload
def l2_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    residual: _Array | None = None,
    eps: float = 1e-12,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    out: _Array | None = None,
    residual_out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, ...]: ...
def layer_norm_backward(
    dy: _Array,
    x: _A,
    weight: _Array | None = None,
    mean: _Array | None = None,
    rstd: _Array | None = None,
    *,
    residual: _Array | None = None,
    dresidual_out: _Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def rms_norm_backward(
    dy: _Array,
    x: _A,
    weight: _Array | None = None,
    rstd: _Array | None = None,
    *,
    residual: _Array | None = None,
    dresidual_out: _Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def l2_norm_backward(
    dy: _Array,
    x: _A,
    weight: _Array | None = None,
    rstd: _Array | None = None,
    *,
    residual: _Array | None = None,
    dresidual_out: _Array | None = None,
    eps: float = 1e-12,
    axis: int = -1,
    weight_offset: float = 0.0,
    rounding: _Rounding = "once",
    eps_mode: _EpsMode = "inside",
    residual_stats: _ResidualStats = "rounded",
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def available_cpus() -> int: ...
def cache_bytes() -> int: ...
def target() -> str: ...
def targets() -> list[str]: ...

_RunningUpdate: TypeAlias = Literal["torch", "keras"]

@overload
def batch_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    running_update: _RunningUpdate = "torch",
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def batch_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    running_update: _RunningUpdate = "torch",
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, _A, _A]: ...
@overload
def instance_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    running_update: _RunningUpdate = "torch",
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def instance_norm(
    x: _A,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    momentum: float = 0.1,
    running_update: _RunningUpdate = "torch",
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, _A, _A]: ...
@overload
def group_norm(
    x: _A,
    groups: int,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[False] = False,
    threads: int | None = None,
) -> _A: ...
@overload
def group_norm(
    x: _A,
    groups: int,
    weight: _Array | None = None,
    bias: _Array | None = None,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    out: _Array | None = None,
    return_stats: Literal[True],
    threads: int | None = None,
) -> tuple[_A, _A, _A]: ...
def batch_norm_backward(
    dy: _Array,
    x: _A,
    weight: _Array | None = None,
    mean: _Array | None = None,
    rstd: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    eps: float = 1e-5,
    channel_axis: int = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def instance_norm_backward(
    dy: _Array,
    x: _A,
    weight: _Array | None = None,
    mean: _Array | None = None,
    rstd: _Array | None = None,
    *,
    running_mean: _Array | None = None,
    running_var: _Array | None = None,
    training: bool = True,
    eps: float = 1e-5,
    channel_axis: int = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def group_norm_backward(
    dy: _Array,
    x: _A,
    groups: int,
    weight: _Array | None = None,
    mean: _Array | None = None,
    rstd: _Array | None = None,
    *,
    eps: float = 1e-5,
    channel_axis: int = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
    dx: _Array | None = None,
    dweight: _Array | None = None,
    dbias: _Array | None = None,
    accumulate: bool = False,
    threads: int | None = None,
) -> tuple[_A | None, _A | None, _A | None]: ...
def version() -> str: ...
