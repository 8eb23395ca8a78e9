"""Exceptions of the package. Each prints as one line: file, key or tensor, expected, found."""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ClosedError",
    "ContextError",
    "DeviceError",
    "Error",
    "ForkedError",
    "HubError",
    "MismatchError",
    "ModelError",
    "NumericError",
    "TensorError",
    "TokenError",
]


class Error(Exception):
    """Any failure of Octavo; the others derive from it."""


class ModelError(Error):
    """A model file that cannot be read or run, or that lacks what a call needs."""

    file: str = ""
    """The file, folder or name of the hub."""


class ArgumentError(Error, ValueError):
    """An argument out of its range, or a part of a request that is wrong."""

    name: str = ""
    """Name of the argument, or path in the request: ``messages[0].role``."""
    expected: str = ""
    """Expected values, if one is named."""
    got: str = ""
    """Value found, if one is named."""


class ContextError(Error, ValueError):
    """A text of more tokens than fit."""

    tokens: int = 0
    """Tokens of the text."""
    n_ctx: int = 0
    """Tokens that fit."""


class TokenError(Error, ValueError):
    """A token id outside the vocabulary."""

    id: int = 0
    """The id."""
    n_vocab: int = 0
    """Size of the vocabulary."""


class NumericError(Error, ArithmeticError):
    """A logit that is not finite."""

    position: int = 0
    """Position of the token."""
    tensor: str = ""
    """First tensor with a value that is not finite."""


class TensorError(Error, ValueError):
    """A tensor that cannot be converted, or an array that the model has no tensor for."""

    tensor: str = ""
    """Name of the tensor."""
    file: str = ""
    """Origin of the array, if there is one."""


class MismatchError(Error, ValueError):
    """Two computations that cannot be compared."""

    what: str = ""
    """Property that differs."""
    a: str = ""
    """Value of the first."""
    b: str = ""
    """Value of the second."""


class DeviceError(Error, RuntimeError):
    """A GPU that failed or cannot be used."""


class HubError(Error, OSError):
    """A model of the hub that cannot be fetched."""


class ClosedError(Error, RuntimeError):
    """A model that was closed."""


class ForkedError(Error, RuntimeError):
    """A model used in a child process of the one that loaded it."""

    loaded_in: int = 0
    """Process that loaded the model."""
    pid: int = 0
    """This process."""
