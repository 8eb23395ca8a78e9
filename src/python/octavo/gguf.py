"""GGUF files: keys, and tensors as arrays.

>>> from octavo import gguf
>>> file = gguf.open("model.gguf")
>>> file.keys["general.architecture"]
'qwen3'
>>> tensor = file.tensors["blk.0.attn_q.weight"]
>>> tensor.type, tensor.shape                   # rows first, as in numpy
('Q4_K', (2048, 1024))
>>> tensor.array().dtype                        # dequantized
dtype('float32')
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._octavo import GgufFile, dequantize, quantize_rows, write_gguf
from .errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["File", "Raw", "Tensor", "open", "quantize", "write"]

# Types whose elements numpy has, too.
_PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "i1"}


class Raw:
    """Bytes of a tensor in a type that numpy lacks: blocks of a quantization, or BF16."""

    __slots__ = ("blocks", "shape", "type")

    def __init__(self, blocks: npt.NDArray[np.uint8], shape: tuple[int, ...], type: str) -> None:
        self.blocks = blocks
        """The bytes, (n,) uint8."""
        self.shape = shape
        """Shape of the values, rows first."""
        self.type = type
        """Name of the type: "Q4_K"."""

    def array(self) -> npt.NDArray[np.float32]:
        """Returns the dequantized values, float32."""
        return dequantize(self.blocks, self.type).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Raw({self.type}, shape={self.shape})"


class Tensor:
    """A tensor of an open file."""

    def __init__(
        self,
        file: GgufFile,
        row: tuple[str, list[int], str, int, tuple[str, int] | None],
    ) -> None:
        self._file = file
        self.name = row[0]
        """Name in the file."""
        self.shape: tuple[int, ...] = tuple(row[1])
        """Shape, rows first: the reverse of ggml's order."""
        self.type = row[2]
        """Name of the type: "F32", "Q4_K", ..."""
        self.nbytes = row[3]
        """Bytes in the file."""
        self._place = row[4]

    @property
    def raw(self) -> npt.NDArray[Any]:
        """The data as the file has it, mapped from it and not copied.

        In the tensor's shape for types that numpy has (F32, F16, integers), else its bytes, (n,)
        uint8. What lies in no file as it is (a Hugging Face folder, the built-in model) is a copy.
        """
        import numpy as np

        if self._place is None:
            data = self._file.read(self.name)
        else:
            path, offset = self._place
            data = np.memmap(path, np.uint8, "r", offset, (self.nbytes,)) if self.nbytes else (
                np.empty(0, np.uint8))
        if self.type in _PLAIN:
            return data.view(_PLAIN[self.type]).reshape(self.shape)
        return data

    def array(self) -> npt.NDArray[np.float32]:
        """Returns the values, dequantized if need be: float32, in the tensor's shape."""
        if self.type == "F32":
            return self.raw
        return self._file.dequantize(self.name).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.type}, shape={self.shape})"


class _Keys(Mapping[str, Any]):
    """Keys of a file; a value is made when it is asked for."""

    def __init__(self, file: GgufFile, types: dict[str, str]) -> None:
        self._file = file
        self._types = types

    def __getitem__(self, key: str) -> Any:
        return self._file.value(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"


class File:
    """An open GGUF file, or a Hugging Face folder seen as one."""

    def __init__(self, file: GgufFile) -> None:
        self.name = file.name
        """Path of the file."""
        self.types: dict[str, str] = dict(file.key_types())
        """Types of the keys' values: "u32", "string", "[f32]", ..."""
        self.keys: Mapping[str, Any] = _Keys(file, self.types)
        """Values by key: numbers, bools, strings, or lists of these."""
        self.tensors: dict[str, Tensor] = {row[0]: Tensor(file, row) for row in file.tensors()}
        """Tensors by name, in the file's order."""

    def __repr__(self) -> str:
        return f"File({self.name!r}, {len(self.keys)} keys, {len(self.tensors)} tensors)"

    def _repr_html_(self) -> str:
        from .html import table

        rows = [[one.name, one.type, " x ".join(map(str, one.shape)), one.nbytes]
                for one in self.tensors.values()]
        return table(self.name, ["tensor", "type", "shape", "bytes"], rows)


def open(source: str | os.PathLike[str] | None = None, *, offline: bool = False) -> File:
    """Opens a GGUF file (of a split model its first part), a Hugging Face folder or a model of the
    hub; None is the built-in model."""
    return File(GgufFile(source, offline=offline))


def quantize(
    array: npt.ArrayLike,
    type: str,
    *,
    importance: npt.ArrayLike | None = None,
) -> Raw:
    """Quantizes the rows of an array to blocks, bit by bit as ggml does.

    Args:
        array: Values, whose last dimension is a row: a multiple of the type's block length.
        type: Name of the type: "Q8_0", "Q4_K", "F16", ...
        importance: Weight of each column, (row,), for the types that take them.
    """
    import numpy as np

    values = np.ascontiguousarray(array, dtype=np.float32)
    weights = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
    blocks = quantize_rows(values.reshape(-1), values.shape[-1], type, weights)
    return Raw(blocks, values.shape, type)


def _type_of(value: Any) -> str:
    """Returns the type of a key's value: that of a numpy scalar, or the usual one."""
    names = {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32",
             "uint32": "u32", "int64": "i64", "uint64": "u64", "float32": "f32", "float64": "f64"}
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (str, bytes)):
        return "string"
    dtype = getattr(value, "dtype", None)
    if dtype is not None and str(dtype) in names:
        name = names[str(dtype)]
        return f"[{name}]" if getattr(value, "ndim", 0) else name
    if isinstance(value, int):
        if 0 <= value < 1 << 32:
            return "u32"
        return "i32" if -(1 << 31) <= value < 0 else "i64" if value < 0 else "u64"
    if isinstance(value, float):
        return "f32"
    if isinstance(value, (list, tuple)) and len(value):
        types = {_type_of(one) for one in value}
        if types <= {"u32", "i32"}:
            types = {"i32"} if max(value) < 1 << 31 else {"i64"}
        if len(types) == 1 and not types <= {"[string]"}:
            return f"[{types.pop()}]"
    raise TypeError(f"{value!r}: expected a number, bool, string, or a list of one of these")


def _plain(name: str, value: Any) -> Raw:
    """Returns what to write of a tensor."""
    import numpy as np

    if isinstance(value, Raw):
        return value
    if isinstance(value, Tensor):
        return Raw(value.raw.reshape(-1).view(np.uint8), value.shape, value.type)
    array = np.ascontiguousarray(value)
    for type, dtype in _PLAIN.items():
        if array.dtype == np.dtype(dtype):
            return Raw(array.reshape(-1).view(np.uint8), array.shape, type)
    error = ArgumentError(f"{name}: an array of {array.dtype}: expected one of "
                          f"{', '.join(_PLAIN)}, or what gguf.quantize makes")
    error.name = name
    raise error


def write(
    path: str | os.PathLike[str],
    keys: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    types: Mapping[str, str] | None = None,
) -> int:
    """Writes a GGUF file: all of it, or nothing.

    Args:
        path: The file; an older one is replaced.
        keys: Values by key. A number without a type of its own is u32 (or i32, u64, i64 if it must
            be) or f32; numpy's scalars and arrays keep theirs.
        tensors: By name: an array, a `Tensor` of an open file, or a `Raw`.
        types: Types of some keys, as `File.types` has them.

    Returns:
        Number of bytes.
    """
    types = types or {}
    rows = [(key, types.get(key) or _type_of(value), value) for key, value in keys.items()]
    datas = []
    for name, value in tensors.items():
        raw = _plain(name, value)
        datas.append((name, list(raw.shape), raw.type, raw.blocks))
    return write_gguf(path, rows, datas)
