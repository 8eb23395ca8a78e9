"""Comparisons of two computations of a text, tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._octavo import Model, compare_arrays, compare_models
from .errors import MismatchError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Report", "TensorReport", "diff", "read_safetensors"]


class TensorReport:
    """How far two versions of a tensor are apart."""

    __slots__ = ("a", "b", "channel", "layer", "max_abs", "name", "nmse", "of_bound", "outside",
                 "position")

    name: str
    """Name of the tensor, as `Model.tap_names` has it."""
    layer: int | None
    """Layer, from 0."""
    position: int
    """Position in the text with the largest error relative to the bound."""
    channel: int
    """Channel of the largest difference there."""
    a: float
    """Value of the first there."""
    b: float
    """Value of the second there."""
    nmse: float
    """Normalized mean squared error of the whole tensor."""
    max_abs: float
    """Largest absolute difference."""
    of_bound: float | None
    """Error as a fraction of its bound at `position`; None where there is no bound."""
    outside: bool
    """Whether the error is outside its bound."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        occurrence = values["occurrence"]
        self.name = values["name"] + (f" #{occurrence + 1}" if occurrence else "")
        for name in self.__slots__:
            if name != "name":
                setattr(self, name, values[name])

    def __repr__(self) -> str:
        return (f"TensorReport({self.name!r}, position={self.position}, channel={self.channel}, "
                f"a={self.a:.6g}, b={self.b:.6g}, nmse={self.nmse:.3g}, outside={self.outside})")


class Report:
    """Comparison of two computations.

    A tensor is outside its bound if its error is larger than the measured errors of its inputs and
    the rounding of its operation explain: the first one is where something is wrong, and not where
    an error from far above has grown.
    """

    verdict: str
    """"identical", "within" (each tensor is within its bound) or "diverged"."""
    first_divergence: TensorReport | None
    """First tensor outside its bound, in the order of the computation."""
    tensors: list[TensorReport]
    """All compared tensors, in the order of the computation."""
    absent: list[str]
    """Names of the first's tensors that the second lacks, and of the second's."""
    logits: dict[str, Any] | None
    """Comparison of the logits, if both have them."""
    a: str
    """Description of the first."""
    b: str
    """Description of the second."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        first = values["first_divergence"]
        self.verdict = values["verdict"]
        self.first_divergence = TensorReport(first) if first else None
        self.tensors = [TensorReport(tensor) for tensor in values["taps"]]
        self.absent = [tensor["name"] for tensor in values["absent"]]
        self.logits = values["logits"]
        self.a = values["a"]
        self.b = values["b"]

    @property
    def ok(self) -> bool:
        """Whether every tensor is within its bound."""
        return self.verdict != "diverged"

    def layers(self) -> dict[int | None, TensorReport]:
        """Returns the tensor of each layer with the largest error relative to its bound."""
        worst: dict[int | None, TensorReport] = {}
        for tensor in self.tensors:
            before = worst.get(tensor.layer)
            if before is None or (tensor.of_bound or 0.0) > (before.of_bound or 0.0):
                worst[tensor.layer] = tensor
        return worst

    def __str__(self) -> str:
        lines = [f"a: {self.a}", f"b: {self.b}"]
        first = self.first_divergence
        if first:
            lines.append(f"first divergence: {first.name}, position {first.position}, channel "
                         f"{first.channel}: {first.a:.6g} in a, {first.b:.6g} in b")
        compared = f"{len(self.tensors)} tensors compared"
        lines.append(f"verdict: {self.verdict} ({compared}, {len(self.absent)} not in both)")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .html import bar, table

        rows = []
        for tensor in self.tensors:
            part = tensor.of_bound or 0.0
            color = "#b03030" if tensor.outside else "#4878a8"
            rows.append([tensor.name, tensor.nmse, tensor.max_abs,
                         "" if tensor.of_bound is None else f"{part:.3g}", bar(part, color)])
        shown = rows if len(rows) <= 40 else rows[:40] + [["...", "", "", "", ""]]
        title = f"{self.verdict}: {self.a} and {self.b}"
        if self.first_divergence:
            title += f"; first outside its bound: {self.first_divergence.name}"
        return table(title, ["tensor", "NMSE", "largest difference", "of bound", ""], shown)


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Reads a safetensors file.

    Returns:
        Arrays by name, mapped from the file; BF16 becomes a float32 copy.
    """
    import json

    import numpy as np

    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
             "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
             "BOOL": "?"}
    file = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(file[:8].tobytes(), "little")
    header = json.loads(file[8:8 + length].tobytes())
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in about["data_offsets"])
        array = file[start:end].view(types[about["dtype"]]).reshape(about["shape"])
        if about["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array
    return arrays


def _rows(name: str, array: Any, n_tokens: int) -> npt.NDArray[np.float32]:
    """Returns an array as one row for each token."""
    import numpy as np

    values = np.ascontiguousarray(array, dtype=np.float32)
    if values.size == 0 or values.size % n_tokens:
        error = MismatchError(f"{name}: an array of shape {values.shape}: expected a row for each "
                              f"of the {n_tokens} tokens")
        error.what, error.a, error.b = name, str(n_tokens), str(values.shape)
        raise error
    return values.reshape(n_tokens, -1)


def diff(
    a: Model,
    b: Model | Mapping[str, Any] | str | os.PathLike[str],
    text: str | bytes | Sequence[int] | None = None,
    *,
    same_routing: bool = False,
) -> Report:
    """Compares two computations of a text, tensor by tensor.

    Args:
        a: The model that sets the bounds.
        b: Another model; or arrays by the names of `Model.tap_names`, all or some, each with a row
            for each token ((n, width) or (n, heads, head_dim)); or a safetensors file of such
            arrays.
        text: A text or token ids; by default the array `tokens` of b.
        same_routing: Of mixtures of experts: let b go on with the experts that a chose.
    """
    if isinstance(b, Model):
        if text is None:
            raise TypeError("text: expected a text or token ids")
        return Report(compare_models(a, b, text, same_routing))
    if isinstance(b, Mapping):
        arrays, origin = dict(b), "arrays"
    else:
        arrays, origin = dict(read_safetensors(b)), str(Path(b))
    tokens = arrays.pop("tokens", None)
    if text is None and tokens is None:
        raise TypeError("text: expected a text, token ids, or an array `tokens` in b")
    if text is None:
        ids = [int(token) for token in tokens]
    elif isinstance(text, (str, bytes)):
        ids = a.tokenize(text)
    else:
        ids = list(text)
    rows = {name: _rows(name, array, len(ids)) for name, array in arrays.items()}
    return Report(compare_arrays(a, rows, origin, ids))
