"""The official ollama package against a server: what it sends and how it reads the answers.

    ollama_client.py http://127.0.0.1:8080
"""

import sys

from ollama import Client, ResponseError

GREEDY = {"temperature": 0, "num_predict": 200}


def roll(sides: int) -> int:
    """Rolls a die.

    Args:
      sides: how many sides it has
    """
    return sides


def main(url):
    client = Client(host=url)
    name = client.list().models[0].model
    assert client.ps().models[0].model == name
    question = [{"role": "user", "content": "1+1="}]
    asked = {"model": name, "messages": question, "options": GREEDY}

    answer = client.chat(**asked)
    assert answer.message.content == "2" and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count > 0 and answer.total_duration > 0, answer
    pieces = list(client.chat(**asked, stream=True))
    assert "".join(piece.message.content for piece in pieces) == "2", pieces
    assert [piece.done for piece in pieces][-2:] == [False, True], pieces

    generated = client.generate(model=name, prompt="1+1=", options=GREEDY)
    assert generated.response == "2", generated
    pieces = list(client.generate(model=name, prompt="1+1=", options=GREEDY, stream=True))
    assert "".join(piece.response for piece in pieces) == "2", pieces

    schema = {"type": "object", "properties": {"sides": {"enum": [6, 20]}}, "required": ["sides"]}
    formatted = client.chat(**asked, format=schema)
    assert formatted.message.content.startswith('{"sides": '), formatted

    described = client.show(name)
    assert described.modelinfo["general.architecture"] == described.details.family, described
    assert "completion" in described.capabilities, described

    vectors = client.embed(model=name, input=["a", "b"]).embeddings
    assert [round(sum(x * x for x in vector), 4) for vector in vectors] == [1.0, 1.0], vectors

    tools(client, asked)
    refusals(client, asked)
    print("ollama: all well")


def tools(client, asked):
    """A conversation with a call, which the package writes without an id, and its result."""
    call = {"function": {"name": "roll", "arguments": {"sides": 6}}}
    conversation = [
        *asked["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "roll", "content": "5"},
    ]
    asked = {**asked, "messages": conversation, "tools": [roll]}
    answer = client.chat(**asked)
    assert answer.done and answer.prompt_eval_count > 20, answer


def refusals(client, asked):
    """Errors, which the package raises with the message."""
    for wrong, word in [
        ({"options": {"top_p": 7}}, "options.top_p"),
        ({"format": "xml"}, "format"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    ]:
        try:
            client.chat(**{**asked, **wrong})
        except (ResponseError, ValueError) as error:
            # the package itself refuses some
            assert word in str(error), error
        else:
            raise AssertionError(f"{wrong} was accepted")
    try:
        client.pull("llama3.2")
    except ResponseError as error:
        assert error.status_code == 501, error
    else:
        raise AssertionError("a model was pulled")


if __name__ == "__main__":
    main(sys.argv[1])
