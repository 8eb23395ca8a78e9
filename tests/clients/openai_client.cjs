// The official openai package for Node against a server: what it sends and how it reads the
// answers.
//
//     openai_client.cjs MODULES http://127.0.0.1:8080/v1
//
// MODULES is the folder whose node_modules has the package.
"use strict";

const assert = require("node:assert/strict");
const { createRequire } = require("node:module");
const path = require("node:path");

const [modules, baseURL] = process.argv.slice(2);
const requireFrom = createRequire(path.resolve(modules, "x"));
const { OpenAI, BadRequestError, NotFoundError } = requireFrom("openai");

const messages = [{ role: "user", content: "1+1=" }];
const roll = {
  type: "function",
  function: {
    name: "roll",
    parameters: { type: "object", properties: { sides: { enum: [6, 20] } }, required: ["sides"] },
  },
};
const schema = {
  type: "object",
  properties: { a: { type: "integer", minimum: 0, maximum: 99 }, b: { type: "boolean" } },
  required: ["a", "b"],
  additionalProperties: false,
};

async function answersWholeAndInPieces(client, model) {
  const chat = await client.chat.completions.create({ model, messages, temperature: 0 });
  assert.equal(chat.choices[0].message.content, "2");
  assert.equal(chat.choices[0].finish_reason, "stop");
  const stream = await client.chat.completions.create({
    model, messages, temperature: 0, stream: true, stream_options: { include_usage: true },
  });
  let [text, usage] = ["", null];
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, "2");
  assert.deepEqual(usage.completion_tokens, chat.usage.completion_tokens);
}

async function callsTools(client, model) {
  const asked = { model, messages, tools: [roll], tool_choice: "required" };
  const check = (choice) => {
    assert.equal(choice.finish_reason, "tool_calls");
    const call = choice.message.tool_calls[0].function;
    assert.equal(call.name, "roll");
    assert.ok([6, 20].includes(JSON.parse(call.arguments).sides), call.arguments);
  };
  check((await client.chat.completions.create(asked)).choices[0]);
  // the package puts the pieces of a call together by itself
  check((await client.chat.completions.stream(asked).finalChatCompletion()).choices[0]);
}

async function keepsToSchemas(client, model) {
  const response_format = { type: "json_schema", json_schema: { name: "x", strict: true, schema } };
  const chat = await client.chat.completions.create({ model, messages, response_format });
  const { a, b } = JSON.parse(chat.choices[0].message.content);
  assert.ok(Number.isInteger(a) && a >= 0 && a <= 99 && typeof b === "boolean", `${a} ${b}`);
}

async function knowsOtherRoutes(client, model) {
  const texts = await client.completions.create({
    model, prompt: ["1+1=", "2+2="], max_tokens: 1, temperature: 0, n: 2, echo: true,
  });
  assert.deepEqual(texts.choices.map((one) => one.text), ["1+1=2", "1+1=2", "2+2=4", "2+2=4"]);
  // it asks for base64 unless told otherwise, and takes that apart
  const vectors = await client.embeddings.create({ model, input: ["1+1=", "2+2="] });
  for (const { embedding } of vectors.data) {
    const square = embedding.reduce((sum, x) => sum + x * x, 0);
    assert.ok(Math.abs(square - 1) < 1e-5, `${square}`);
  }
  const response = await client.responses.create({ model, input: "1+1=", temperature: 0 });
  assert.equal(response.output_text, "2");
  assert.equal(response.status, "completed");
}

async function tellsErrorsApart(client, model) {
  const is404 = (error) => error instanceof NotFoundError && error.status === 404;
  await assert.rejects(client.models.retrieve("another"), is404);
  for (const [kind, status, asked] of [
    [BadRequestError, 400, { model, messages: [] }],
    [BadRequestError, 400, { model, messages, temperature: 3 }],
  ]) {
    const is = (error) => error instanceof kind && error.status === status;
    await assert.rejects(client.chat.completions.create(asked), is, JSON.stringify(asked));
  }
}

async function leaves(client, model) {
  const stream = await client.chat.completions.create({
    model, messages, stream: true, max_tokens: 1000, ignore_eos: true,
  });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
}

async function main() {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
  const model = (await client.models.list()).data[0].id;
  const checks = [
    answersWholeAndInPieces, callsTools, keepsToSchemas, knowsOtherRoutes, tellsErrorsApart, leaves,
  ];
  for (const check of checks) await check(client, model);
  console.log(`openai for Node: all well with ${model}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
