"""Python frameworks against a server: what they send unasked, and how they read the answers.

    frameworks.py http://127.0.0.1:8080/v1

What each row of docs/serving.md's table of clients promises is asked here: LangChain with a set,
instructor's tools, outlines as it speaks to vLLM and to OpenAI, guidance. The model may say what
it likes: only the forms are checked.
"""

import re
import sys
from typing import Literal, Optional

import guidance
import instructor
import openai
import outlines
from langchain_openai import ChatOpenAI
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

QUESTION = "Name the colours of grass."


class Palette(BaseModel):
    """Colours."""

    # pydantic writes uniqueItems for a set, which grammars cannot hold
    colours: set[Literal["red", "green", "blue"]] = Field(max_length=3)
    shade: Optional[Literal["light", "dark"]] = None


class Answer(BaseModel):
    """What a schema can say whole."""

    colour: Literal["red", "green"]
    sure: bool


def langchain(url, name):
    chat = ChatOpenAI(base_url=url, api_key="none", model=name, temperature=0, max_tokens=200)
    for method in ["json_schema", "function_calling"]:
        palette = chat.with_structured_output(Palette, method=method).invoke(QUESTION)
        assert isinstance(palette, Palette), (method, palette)
    said = [piece.text for piece in chat.stream(QUESTION)]
    assert "".join(said).strip(), said


def instructor_modes(url, name):
    client = openai.OpenAI(base_url=url, api_key="none")
    messages = [{"role": "user", "content": QUESTION}]
    for mode in [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]:
        palette = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=name, response_model=Palette, messages=messages, max_tokens=200, temperature=0,
            max_retries=1)
        assert isinstance(palette, Palette), (mode, palette)


def outlines_modes(url, name):
    client = openai.OpenAI(base_url=url, api_key="none")
    vllm = outlines.from_vllm(client, name)
    Answer.model_validate_json(vllm(QUESTION, Answer, max_tokens=100, temperature=0))
    for kind, form in [
        (Literal["red", "green"], "red|green"),
        (Regex("[0-9]{3}-[a-f]{2}"), "[0-9]{3}-[a-f]{2}"),
        (CFG('?start: "<" WORD ">"\nWORD: /[a-z]{1,8}/'), "<[a-z]{1,8}>"),
    ]:
        text = vllm(QUESTION, kind, max_tokens=40, temperature=0)
        assert re.fullmatch(form, text), (form, text)
    Answer.model_validate_json(
        outlines.from_openai(client, name)(QUESTION, Answer, max_tokens=100, temperature=0))


def guidance_programs(url, name):
    model = guidance.models.OpenAI(name, api_key="none", base_url=url)
    with guidance.user():
        model += QUESTION
    with guidance.assistant():
        model += guidance.json("answer", schema=Answer, temperature=0, max_tokens=100)
    Answer.model_validate_json(model["answer"])
    with guidance.user():
        model += "And of the sky?"
    with guidance.assistant():
        model += guidance.gen("text", max_tokens=8)
    assert model["text"], model


def main(url):
    name = openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id
    for client in [langchain, instructor_modes, outlines_modes, guidance_programs]:
        client(url, name)
        print(f"{client.__name__}: all well with {name}")


main(sys.argv[1])
