"""The class `Model`: the extension's, with chats as OpenAI's API has them."""

from __future__ import annotations

from ._octavo import Completion, Stream
from ._octavo import Model as _Model

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from . import gguf

    Message = Mapping[str, Any]
    Image = bytes | str | os.PathLike[str]

__all__ = ["Model"]

# Fields of OpenAI's API for keyword arguments that have other names.
_FIELDS = {"stop_ids": "stop_token_ids", "special": None}


def _image_part(image: Image) -> dict[str, Any]:
    """Makes the part of a message that shows an image: the file's bytes, or its path."""
    import base64

    if not isinstance(image, bytes):
        with open(image, "rb") as file:
            image = file.read()
    url = "data:;base64," + base64.b64encode(image).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _with_images(messages: Sequence[Message], images: Iterable[Image]) -> list[Message]:
    """Puts images before the text of the last message of the user."""
    parts = [_image_part(image) for image in images]
    result = list(messages)
    users = [at for at, message in enumerate(result) if message.get("role") == "user"]
    if not users:
        raise ValueError("images: expected a message of the user to put them in")
    message = dict(result[users[-1]])
    content = message.get("content") or []
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    message["content"] = parts + list(content)
    result[users[-1]] = message
    return result


def _request(
    messages: str | Sequence[Message],
    images: Iterable[Image],
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes a request of OpenAI's API."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    request: dict[str, Any] = {}
    for name, value in fields.items():
        field = _FIELDS.get(name, name)
        if field is None:
            raise TypeError(f"{name}: expected no such argument of a chat")
        if value is not None:
            request[field] = value
    logprobs = request.pop("logprobs", None)
    if logprobs is not None:
        request["logprobs"] = True
        request["top_logprobs"] = int(logprobs)
    images = list(images)
    request["messages"] = _with_images(messages, images) if images else list(messages)
    return request


class Model(_Model):
    __doc__ = _Model.__doc__

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        json_schema: Mapping[str, Any] | None = None,
        images: Iterable[Image] = (),
        **options: Any,
    ) -> Completion:
        """Answers a conversation, as the server's /v1/chat/completions does.

        Settings of sampling that are not given are those that the model recommends.

        Args:
            messages: Messages of OpenAI's API, or the text of the user's only one.
            tools: Tools of OpenAI's API; `tool_choice` and `parallel_tool_calls` are options.
            json_schema: Schema of the answer, a JSON text.
            images: Image files (bytes or paths) of the last message of the user.
            **options: As for `generate`, and enable_thinking, reasoning_effort and
                chat_template_kwargs.

        Returns:
            The answer: its content is `text`, and `message` is what to append to the messages.
        """
        fields = {**options, "tools": tools, "json_schema": json_schema}
        return self._chat(_request(messages, images, fields))

    def chat_stream(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        json_schema: Mapping[str, Any] | None = None,
        images: Iterable[Image] = (),
        **options: Any,
    ) -> Stream:
        """Does the same as `chat` and iterates over the pieces of the answer as they come."""
        fields = {**options, "tools": tools, "json_schema": json_schema}
        return self._chat_stream(_request(messages, images, fields))

    def apply_chat_template(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        """Returns the prompt of a conversation, rendered by the file's chat template.

        Args:
            messages, tools: As for `chat`.
            add_generation_prompt: End where the assistant's answer begins.
            **options: enable_thinking, reasoning_effort, chat_template_kwargs.
        """
        fields = {**options, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._render_chat(_request(messages, (), fields))

    @property
    def gguf(self) -> gguf.File:
        """The model's file: its keys and tensors."""
        from . import gguf

        return gguf.File(self._gguf)

    @property
    def facts(self) -> dict[str, Any]:
        """Architecture, sizes, memory in bytes, device and special tokens, by name."""
        return self._facts

    @property
    def n_ctx(self) -> int:
        """Context length in tokens."""
        return int(self._facts["n_ctx"])

    @property
    def n_vocab(self) -> int:
        """Number of tokens of the vocabulary, and of logits of a row."""
        return int(self._facts["n_vocab"])

    @property
    def n_embd(self) -> int:
        """Width of the embeddings."""
        return int(self._facts["n_embd"])

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(self._facts["n_layer"])

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({self.name!r})"

    def _repr_html_(self) -> str:
        from .html import table

        facts = {**self._facts}
        for name in ("file_bytes", "weight_bytes", "kv_bytes"):
            facts[name.replace("_bytes", " memory")] = f"{facts.pop(name) / 2**20:.1f} MiB"
        return table(self.name, ["", ""], [[name, facts[name]] for name in facts])
