"""What a model file may hold, looked at before any runtime does.

A graph of fedmeta has tensors inside and operators that do one thing once. Loops and branches,
functions, operators of other makers and weights in other files are refused. An .onnx file is a
protobuf message: fields, each with a number and a length, so a few lines can read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmeta_edge.errors import EdgeError

_NAMES = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization
BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu CenterCropPad Clip
Col2Im Compress Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace
DequantizeLinear Div Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather
GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual
GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN
LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool MaxUnpool
Mean MeanVarianceNormalization Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not OneHot
Or PRelu Pad Pow QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
Resize Round ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice
Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan
Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(_NAMES.split())
"""What exported graphs are made of: each computes tensors from tensors, once."""
_MOST_NODES = 20_000

# Numbers of fields in onnx.proto.
_GRAPH, _TRAINING, _FUNCTIONS = 7, 20, 25  # of a model
_NODE, _INITIALIZER, _SPARSE = 1, 5, 15  # of a graph
_ATTRIBUTE, _OPERATOR, _DOMAIN = 5, 4, 7  # of a node
_TENSOR, _TENSORS = 5, 10  # of an attribute
_INNER = (6, 11, 22, 23)  # of an attribute: graphs and sparse tensors
_EXTERNAL, _LOCATION = 13, 14  # of a tensor


def check_graph(content: bytes) -> None:
    """Refuse a model file with anything beyond the graphs that `fedmeta export` writes.

    Raises:
        EdgeError: it names what was found.
    """
    try:
        _check_model(memoryview(content))
    except (ValueError, IndexError):
        raise EdgeError(
            "the model file is no whole ONNX file", "copy it again, or export it again"
        ) from None


def _check_model(content: memoryview) -> None:
    nodes = 0
    for number, value in _fields(content):
        if number in (_TRAINING, _FUNCTIONS):
            raise _refused("functions of its own")
        if number != _GRAPH:
            continue
        for inner, part in _fields(_message(value)):
            if inner == _NODE:
                nodes += 1
                _check_node(_message(part))
            elif inner == _INITIALIZER:
                _check_tensor(_message(part))
            elif inner == _SPARSE:
                raise _refused("sparse weights")
    if nodes > _MOST_NODES:
        raise _refused(f"{nodes} operations, more than {_MOST_NODES}")


def _check_node(content: memoryview) -> None:
    operators = []
    for number, value in _fields(content):
        if number == _OPERATOR:
            operators.append(bytes(_message(value)).decode("ascii", "replace"))
        elif number == _DOMAIN and bytes(_message(value)) not in (b"", b"ai.onnx"):
            raise _refused(f"operators of {bytes(_message(value)).decode('ascii', 'replace')[:40]}")
        elif number == _ATTRIBUTE:
            _check_attribute(_message(value))
    for name in operators or ["no name"]:
        if name not in OPERATORS:
            raise _refused(f"the operator {name[:40]}")


def _check_attribute(content: memoryview) -> None:
    for number, value in _fields(content):
        if number in _INNER:
            raise _refused("a graph within its graph")
        if number in (_TENSOR, _TENSORS):
            _check_tensor(_message(value))


def _check_tensor(content: memoryview) -> None:
    for number, value in _fields(content):
        if number == _EXTERNAL or (number == _LOCATION and value != 0):
            raise _refused("weights in another file, which no checksum covers")


def _refused(what: str) -> EdgeError:
    return EdgeError(
        f"the model has {what}, which fedmeta export does not write", "do not trust this file"
    )


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message should be")
    return value


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Numbers and contents of the fields of a message."""
    place, end = 0, len(content)
    while place < end:
        tag, place = _varint(content, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(content, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, place = _varint(content, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("an unknown kind of field")
        if place + size > end:
            raise ValueError("a field is cut short")
        if kind == 2:
            yield tag >> 3, content[place : place + size]
        place += size


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number is too long")
