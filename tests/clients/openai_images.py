"""An image through the `openai` package gives the command line's text.

    openai_images.py OCTAVO URL MODEL TOWER IMAGE
"""

import base64
import json
import subprocess
import sys

from openai import BadRequestError, OpenAI

octavo, url, model, tower, image = sys.argv[1:]
client = OpenAI(base_url=url, api_key="none")
question = "Name what the image shows, and how large it is."

command = [octavo, "run", model, "--mmproj", tower, "--image", image, "--chat", "-p", question]
command += ["-n", "24", "--json"]
expected = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

with open(image, "rb") as file:
    data = base64.b64encode(file.read()).decode()


def parts(address):
    """A message: the image, then the question."""
    image = {"type": "image_url", "image_url": {"url": address}}
    return [{"role": "user", "content": [image, {"type": "text", "text": question}]}]


def ask(address, **more):
    """The answer about an image at an address."""
    return client.chat.completions.create(
        model="", messages=parts(address), max_tokens=24, temperature=0, **more
    )


address = f"data:image/png;base64,{data}"
answer = ask(address)
assert answer.choices[0].message.content == expected["text"], answer
assert answer.usage.prompt_tokens == len(expected["prompt_tokens"]), answer.usage

chunks = ask(address, stream=True)
pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
assert "".join(pieces) == expected["text"], pieces

for wrong in ["https://example.org/image.png", "data:image/png;base64,AAAA"]:
    try:
        ask(wrong)
    except BadRequestError as error:
        assert "image_url" in str(error), error
    else:
        raise AssertionError(f"{wrong} was taken")

print("images through the openai package: the command line's text")
