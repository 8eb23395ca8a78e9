"""The official openai package against a server: what it sends and how it reads the answers.

    openai_client.py http://127.0.0.1:8080/v1
"""

import sys

from openai import BadRequestError, NotFoundError, OpenAI


def main(url):
    client = OpenAI(base_url=url, api_key="none")
    name = client.models.list().data[0].id
    question = [{"role": "user", "content": "1+1="}]

    chat = client.chat.completions.create(model=name, messages=question, temperature=0)
    assert chat.choices[0].message.content == "2", chat
    assert chat.choices[0].finish_reason == "stop", chat
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens

    text, usage = "", None
    for chunk in client.chat.completions.create(
        model=name, messages=question, temperature=0, stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == "2" and usage.completion_tokens == chat.usage.completion_tokens, (text, usage)

    texts = client.completions.create(
        model=name, prompt=["1+1=", "2+2="], max_tokens=1, temperature=0, logprobs=2, n=2, echo=True
    )
    assert [choice.text for choice in texts.choices] == ["1+1=2", "1+1=2", "2+2=4", "2+2=4"], texts
    assert all(choice.logprobs.token_logprobs[0] is None for choice in texts.choices)

    vectors = client.embeddings.create(model=name, input=["1+1=", "2+2="])
    assert all(abs(sum(x * x for x in one.embedding) - 1) < 1e-5 for one in vectors.data)

    response = client.responses.create(model=name, input="1+1=", temperature=0)
    assert response.output_text == "2" and response.status == "completed", response
    again = client.responses.retrieve(response.id)
    assert again.output_text == response.output_text, again
    more = client.responses.create(
        model=name, input="2+2=", temperature=0, previous_response_id=response.id)
    assert more.usage.input_tokens > response.usage.input_tokens, more
    assert len(client.responses.input_items.list(more.id).data) == 3
    client.responses.delete(response.id)
    kinds = [event.type for event in client.responses.create(model=name, input="1+1=", stream=True)]
    assert kinds[0] == "response.created" and kinds[-1].startswith("response."), kinds

    tool = {"type": "function", "function": {"name": "roll", "parameters": {
        "type": "object", "properties": {"sides": {"enum": [6, 20]}}, "required": ["sides"]}}}
    called = client.chat.completions.create(
        model=name, messages=question, tools=[tool], tool_choice="required")
    assert called.choices[0].message.tool_calls[0].function.name == "roll", called
    assert called.choices[0].finish_reason == "tool_calls", called

    for error, ask, arguments in [
        (NotFoundError, client.models.retrieve, {"model": "another"}),
        (BadRequestError, client.chat.completions.create, {"model": name, "messages": []}),
        (BadRequestError, client.chat.completions.create,
         {"model": name, "messages": question, "temperature": 3}),
    ]:
        try:
            ask(**arguments)
        except error:
            continue
        raise AssertionError(f"{arguments} was taken")
    print(f"openai: all well with {name}")


main(sys.argv[1])
