"""The official anthropic package against a server: what it sends and how it reads the answers.

    anthropic_client.py http://127.0.0.1:8080
"""

import sys

from anthropic import Anthropic, BadRequestError

ROLL = {"name": "roll", "description": "rolls a die", "input_schema": {
    "type": "object", "properties": {"sides": {"enum": [6, 20]}}, "required": ["sides"]}}


def main(url):
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    question = [{"role": "user", "content": "1+1="}]
    # the package has no field for what the newest models of its own do not take
    greedy = {"temperature": 0}
    asked = {
        "model": "octavo", "messages": question, "max_tokens": 200, "extra_body": greedy}

    message = client.messages.create(**asked)
    assert [block.text for block in message.content] == ["2"], message
    assert message.stop_reason == "end_turn" and message._request_id, message

    stopped = client.messages.create(**asked, stop_sequences=["2"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "2"), stopped

    kinds = []
    with client.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert streamed.content[0].text == "2" and streamed.stop_reason == "end_turn", streamed
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    usage = streamed.usage
    whole = usage.input_tokens + usage.cache_read_input_tokens
    assert client.messages.count_tokens(model="octavo", messages=question).input_tokens == whole

    tools(client, asked)
    thoughts(client, asked)
    refusals(client, asked)
    print("anthropic: all well")


def tools(client, asked):
    """A call, whole and streamed, and its result."""
    asked = {**asked, "tools": [ROLL], "tool_choice": {"type": "any"}}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in [client.messages.create(**asked), streamed]:
        call = message.content[-1]
        assert message.stop_reason == "tool_use", message
        assert call.name == "roll" and call.input["sides"] in (6, 20), message
    conversation = [
        *asked["messages"],
        {"role": "assistant", "content": streamed.content},
        {"role": "user", "content": [{
            "type": "tool_result", "tool_use_id": call.id, "is_error": True,
            "content": [{"type": "text", "text": "it fell off the table"}],
        }]},
    ]
    answer = client.messages.create(**{
        **asked, "messages": conversation, "tool_choice": {"type": "none"}, "max_tokens": 4})
    assert answer.role == "assistant", answer


def thoughts(client, asked):
    """Thinking switched on and off, and a thought that is handed back."""
    for thinking in [
        {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"},
    ]:
        assert client.messages.create(**asked, thinking=thinking).content, thinking
    block = {"type": "thinking", "thinking": "easy", "signature": "any"}
    said = {"role": "assistant", "content": [block, {"type": "text", "text": "2"}]}
    more = [*asked["messages"], said, {"role": "user", "content": "2+2="}]
    assert client.messages.create(**{**asked, "messages": more}).content


def refusals(client, asked):
    """Errors that name the field."""
    for field, wrong in [
        ("messages", {"messages": []}),
        ("temperature", {"extra_body": {"temperature": 3}}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ]:
        try:
            client.messages.create(**{**asked, **wrong})
        except BadRequestError as error:
            told = error.body["error"]
            assert told["type"] == "invalid_request_error", error.body
            assert told["message"].startswith(f"{field}: "), error.body
            assert error.request_id == error.body["request_id"], error.body
            continue
        raise AssertionError(f"{wrong} was taken")


main(sys.argv[1])
