// The official anthropic package for Node against a server: what it sends and how it reads the
// answers.
//
//     anthropic_client.cjs MODULES http://127.0.0.1:8080
//
// MODULES is the folder whose node_modules has the package.
"use strict";

const assert = require("node:assert/strict");
const { createRequire } = require("node:module");
const path = require("node:path");

const [modules, baseURL] = process.argv.slice(2);
const requireFrom = createRequire(path.resolve(modules, "x"));
const { Anthropic, BadRequestError } = requireFrom("@anthropic-ai/sdk");

const asked = {
  model: "octavo",
  messages: [{ role: "user", content: "1+1=" }],
  max_tokens: 200,
  temperature: 0,
};
const roll = {
  name: "roll",
  input_schema: {
    type: "object", properties: { sides: { enum: [6, 20] } }, required: ["sides"],
  },
};

async function answersWholeAndInPieces(client) {
  const message = await client.messages.create(asked);
  assert.deepEqual(message.content.map((block) => block.text), ["2"]);
  assert.equal(message.stop_reason, "end_turn");
  let text = "";
  const stream = client.messages.stream(asked).on("text", (piece) => { text += piece; });
  const streamed = await stream.finalMessage();
  assert.equal(text, "2");
  const { input_tokens: computed, cache_read_input_tokens: cached } = streamed.usage;
  const counted = await client.messages.countTokens({
    model: asked.model, messages: asked.messages,
  });
  assert.equal(counted.input_tokens, computed + cached);
}

async function callsTools(client) {
  const withTools = { ...asked, tools: [roll], tool_choice: { type: "any" } };
  for (const message of [
    await client.messages.create(withTools),
    await client.messages.stream(withTools).finalMessage(),
  ]) {
    assert.equal(message.stop_reason, "tool_use");
    const call = message.content.at(-1);
    assert.equal(call.name, "roll");
    assert.ok([6, 20].includes(call.input.sides), JSON.stringify(call));
  }
}

async function thinks(client) {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  assert.ok((await client.messages.create({ ...asked, thinking })).content.length > 0);
}

async function namesWhatIsWrong(client) {
  const isRefusal = (error) =>
    error instanceof BadRequestError && error.error.error.message.startsWith("messages: ");
  await assert.rejects(client.messages.create({ ...asked, messages: [] }), isRefusal);
}

async function main() {
  const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
  for (const check of [answersWholeAndInPieces, callsTools, thinks, namesWhatIsWrong]) {
    await check(client);
  }
  console.log("anthropic for Node: all well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
