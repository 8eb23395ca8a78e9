// Vercel's AI SDK against a server: what it sends unasked and how it reads the answers.
//
//     ai_sdk.cjs MODULES http://127.0.0.1:8080/v1
//
// MODULES is the folder whose node_modules has the packages.
"use strict";

const assert = require("node:assert/strict");
const { createRequire } = require("node:module");
const path = require("node:path");

const [modules, baseURL] = process.argv.slice(2);
const requireFrom = createRequire(path.resolve(modules, "x"));
const { generateText, streamText, Output, tool } = requireFrom("ai");
const { createOpenAICompatible } = requireFrom("@ai-sdk/openai-compatible");
const { z } = requireFrom("zod");

const prompt = "How many legs has a cat?";
const limits = { maxOutputTokens: 200, temperature: 0, maxRetries: 0 };
// a record is told by propertyNames, an integer by bounds of 53 bits, and both come with strict
const legs = z.object({ animal: z.enum(["cat", "bird"]), legs: z.record(z.string(), z.int()) });

async function writesTexts(model) {
  const { text, usage } = await generateText({ model, prompt, ...limits, maxOutputTokens: 20 });
  assert.ok(text.length > 0 && usage.outputTokens > 0, text);
  const stream = streamText({ model, prompt, ...limits, maxOutputTokens: 20 });
  let said = "";
  for await (const piece of stream.textStream) said += piece;
  assert.equal(said, text);
  assert.equal((await stream.usage).outputTokens, usage.outputTokens);
}

async function writesObjects(model) {
  const output = Output.object({ schema: legs });
  legs.parse((await generateText({ model, output, prompt, ...limits })).output);
  const stream = streamText({ model, output, prompt, ...limits });
  let last;
  for await (const partial of stream.partialOutputStream) last = partial;
  legs.parse(last);
}

async function callsTools(model) {
  const tools = { count: tool({ description: "Counts legs.", inputSchema: legs }) };
  const asked = { model, tools, toolChoice: "required", prompt, ...limits };
  const check = (calls) => {
    assert.equal(calls.length, 1);
    assert.equal(calls[0].toolName, "count");
    legs.parse(calls[0].input);
  };
  check((await generateText(asked)).toolCalls);
  check(await streamText(asked).toolCalls);
}

async function main() {
  const provider = createOpenAICompatible({
    name: "octavo", baseURL, supportsStructuredOutputs: true, includeUsage: true,
  });
  const listed = await (await fetch(`${baseURL}/models`)).json();
  const name = listed.data[0].id;
  const model = provider(name);
  await writesTexts(model);
  await writesObjects(model);
  await callsTools(model);
  console.log(`AI SDK: all well with ${name}`);
}

main();
