"""ONNX Runtime, CPU provider, one node per session, inputs and outputs bound to given memory (IO binding)."""

from __future__ import annotations

from . import Prepared, Skip, missing

NAME, TORCH_DOOR = "ORT", False


def absent() -> str | None:
    return missing("onnxruntime", "onnx")


def version() -> str:
    import onnxruntime

    return onnxruntime.__version__


def _channel_model(cell, element_type):
    """BatchNormalization (inference) and InstanceNormalization; GroupNormalization has no kernel of its own on CPUs."""
    from onnx import helper

    kinds = {"batch_norm_eval": "BatchNormalization", "instance_norm": "InstanceNormalization"}
    if cell.op not in kinds or cell.last:
        raise Skip("has no such kernel")
    names = ["x", "w", "b"] + (["m", "v"] if cell.op == "batch_norm_eval" else [])
    node = helper.make_node(kinds[cell.op], names, ["y"], epsilon=cell.eps)
    values = [
        helper.make_tensor_value_info(n, element_type, list(cell.shape) if n == "x" else [cell.channels]) for n in names
    ]
    result = helper.make_tensor_value_info("y", element_type, list(cell.shape))
    graph = helper.make_graph([node], "norm", values, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _model(cell, element_type):
    from onnx import helper

    if not hasattr(cell, "rows"):
        return _channel_model(cell, element_type)
    standard = {("layer_norm", False): "LayerNormalization", ("rms_norm", False): "SimplifiedLayerNormalization"}
    fused = {("layer_norm", True): "SkipLayerNormalization", ("rms_norm", True): "SkipSimplifiedLayerNormalization"}
    kind = (standard | fused)[cell.op, cell.residual]
    names = ["x", *(["r"] if cell.residual else []), "w", *(["b"] if cell.centred else [])]
    outputs = ["y", "", "", "h"] if cell.residual else ["y"]
    attributes = {"epsilon": cell.eps} if cell.residual else {"epsilon": cell.eps, "axis": -1}
    domain = "com.microsoft" if cell.residual else ""
    node = helper.make_node(kind, names, outputs, domain=domain, **attributes)
    matrix, width = [cell.rows, cell.cols], [cell.cols]
    values = [helper.make_tensor_value_info(n, element_type, width if n in "wb" else matrix) for n in names]
    results = [helper.make_tensor_value_info(n, element_type, matrix) for n in outputs if n]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "norm", values, results), opset_imports=opsets, ir_version=10)


def _session(cell, element_type, threads, outputs_given):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Its arena keeps memory, which with fresh outputs would spare it the page faults that all others have.
    options.enable_cpu_mem_arena = outputs_given
    model = _model(cell, element_type).SerializeToString()
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Skip(f"no kernel: {str(error)[:120]}") from None


def prepare(cell, data, threads, outputs_given) -> Prepared:
    from onnx import TensorProto

    if cell.backward:
        raise Skip("has no backward")
    if cell.op == "llama_rms_norm":
        raise Skip("has no such rounding")
    element_type = {"f32": TensorProto.FLOAT, "bf16": TensorProto.BFLOAT16, "f16": TensorProto.FLOAT16}[cell.dtype]
    session = _session(cell, element_type, threads, outputs_given)
    binding = session.io_binding()
    arrays = {"x": data.x, "r": data.residual, "w": data.weight, "b": data.bias}
    if cell.op == "batch_norm_eval":
        arrays |= {"m": data.running_mean, "v": data.running_var}
    for name, array in arrays.items():
        if array is not None:
            binding.bind_input(name, "cpu", 0, element_type, array.shape, array.ctypes.data)
    outputs = {"y": data.empty_like_x()} | ({"h": data.empty_like_x()} if cell.residual else {})
    for name, array in outputs.items():
        if outputs_given:
            binding.bind_output(name, "cpu", 0, element_type, array.shape, array.ctypes.data)

    def run():
        if not outputs_given:
            for name in outputs:
                binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)

    def results():
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, element_type, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)
        return outputs

    return Prepared(run, results, given=outputs_given)
