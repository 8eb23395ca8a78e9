"""Records the tensors of a PyTorch model under Octavo's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Recording", "record"]


class Recording(dict[str, Any]):
    """Arrays that a module has computed, by tap name: what `octavo.diff` takes as b.

    It fills while the module runs; a later run replaces what an earlier one computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[Any] = []

    def close(self) -> None:
        """Removes the hooks from the module; the arrays stay."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _array(value: Any) -> Any:
    """Returns a tensor of one text as an array (n, width), float32."""
    import numpy as np

    while isinstance(value, (tuple, list)):
        value = value[0]
    for name in ("detach", "float", "cpu"):
        method = getattr(value, name, None)
        value = method() if method else value
    numpy = getattr(value, "numpy", None)
    array = np.array(numpy() if numpy else value, dtype=np.float32)
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    return array.reshape(array.shape[0], -1) if array.ndim > 1 else array


def _pattern(path: str) -> re.Pattern[str]:
    """Returns the expression of a module's path, in which {i} is a number."""
    parts = [re.escape(part) for part in path.split("{i}")]
    return re.compile(r"(\d+)".join(parts))


def record(module: Any, mapping: Mapping[str, str]) -> Recording:
    """Records what modules of a PyTorch model compute.

    Args:
        module: A `torch.nn.Module`.
        mapping: Tap names by paths of submodules. {i} stands for a number in both; " input" behind
            a path takes the module's input instead of its output:
            {"model.layers.{i}.self_attn.q_proj": "Qcur-{i}",
             "model.layers.{i}": "l_out-{i}",
             "lm_head input": "result_norm", "lm_head": "result_output"}

    Returns:
        A dictionary that fills when the module runs on one text. Use it in a `with` block, or close
        it, to remove the hooks.

    Raises:
        KeyError: No submodule has the path.
    """
    recording = Recording()
    modules = dict(module.named_modules())
    try:
        for path, name in mapping.items():
            submodule = path.removesuffix(" input")
            pattern, is_input = _pattern(submodule), path.endswith(" input")
            found = [(pattern.fullmatch(key), key) for key in modules]
            matches = [(match, key) for match, key in found if match]
            if not matches:
                raise KeyError(f"{submodule}: expected the path of a submodule, "
                               f"such as {', '.join(list(modules)[1:6])}")
            for match, key in matches:
                tap = name.replace("{i}", match.group(1)) if match.groups() else name
                recording._hooks.append(_hook(recording, modules[key], tap, is_input))
    except BaseException:
        recording.close()
        raise
    return recording


def _hook(recording: Recording, module: Any, tap: str, is_input: bool) -> Any:
    """Makes a module put what it computes into a recording."""

    def take(_module: Any, inputs: Any, made: Any) -> None:
        recording[tap] = _array(inputs if is_input else made)

    return module.register_forward_hook(take)
