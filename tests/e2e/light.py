"""The nine classic CNNs that come with onnx: their architectures, with constants for weights.

As they are, all their dims are fixed and every class is as likely as the next. `opened` gives them
random weights and any batch size, and the scores before the softmax as a second result, so that an
error shows.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = tuple(sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx")))


def path_of(name: str) -> Path:
    return FOLDER / f"light_{name}.onnx"


def expected(name: str) -> np.ndarray:
    """The result that comes with the model, for `ramp()`."""
    proto = onnx.TensorProto.FromString((FOLDER / f"light_{name}_output_0.pb").read_bytes())
    return numpy_helper.to_array(proto)


def ramp() -> np.ndarray:
    """The picture of onnx's own test of these models."""
    shape = (1, 3, 224, 224)
    return (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)


def input_name(model: ModelProto) -> str:
    """The picture: the only input without an initializer."""
    given = {i.name for i in model.graph.initializer}
    (name,) = (i.name for i in model.graph.input if i.name not in given)
    return name


def opened(name: str) -> ModelProto:
    """The architecture with random weights, for any number of pictures."""
    model = onnx.load(path_of(name))
    graph = model.graph
    picture = input_name(model)
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    users = {n: (node.op_type, k) for node in graph.node for k, n in enumerate(node.input)}
    rng = np.random.default_rng(0)
    kept = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            weight = _weight(tuple(shapes[node.input[0]]), *users[node.output[0]], rng)
            graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    targets = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in targets and shapes[tensor.name][0] == 1:
            target = np.concatenate([[0], shapes[tensor.name][1:]])  # 0: as many as there are
            tensor.CopyFrom(numpy_helper.from_array(target, tensor.name))
    for value in (*(i for i in graph.input if i.name == picture), *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    del graph.value_info[:]
    (scores,) = (n.input[0] for n in graph.node if n.output[0] == graph.output[0].name)
    graph.output.append(helper.make_tensor_value_info(scores, onnx.TensorProto.FLOAT, None))
    return model


def _weight(
    shape: tuple[int, ...], user: str, position: int, rng: np.random.Generator
) -> np.ndarray:
    """Of a size that keeps activations in range: He's for products; scales and variances near 1."""
    if len(shape) > 1:
        values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
    elif user == "Unsqueeze" or (user == "BatchNormalization" and position in (1, 4)):
        values = rng.uniform(0.5, 1.5, shape)
    else:
        values = rng.standard_normal(shape) * 0.1
    return values.astype(np.float32)
