// The `openai` package of Node against a gateway: node openai_node.mjs URL. Ends with status 1 at the first fault.
import assert from "node:assert/strict";
import OpenAI from "openai";

const baseURL = process.argv[2];
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Write a function that adds two numbers." }];
const chat = { model: "demo", messages, max_tokens: 16, temperature: 0 };

const cases = {
  async models() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    assert.deepEqual(names, ["demo"]);
    assert.equal((await client.models.retrieve("demo")).id, "demo");
  },

  async "a chat, and its stream, say the same"() {
    const { data, response, request_id } = await client.chat.completions.create(chat).withResponse();
    const whole = data.choices[0].message.content;
    assert.ok(whole.length > 0);
    assert.ok(data.usage.completion_tokens <= 16);
    assert.equal(response.headers.get("x-specpilot-class"), "default");
    assert.ok(request_id);
    const stream = await client.chat.completions.create({ ...chat, stream: true });
    let text = "";
    let usage = 0;
    for await (const part of stream) {
      text += part.choices[0]?.delta?.content ?? "";
      usage += part.usage ? 1 : 0;
    }
    assert.equal(text, whole);
    assert.equal(usage, 0);
  },

  async "usage where it is asked for"() {
    const stream = await client.chat.completions.create({
      ...chat, temperature: 1, stream: true, n: 2, stream_options: { include_usage: true },
    });
    const parts = [];
    for await (const part of stream) parts.push(part);
    assert.equal(parts.filter((part) => part.usage).length, 1);
    assert.deepEqual([...new Set(parts.flatMap((part) => part.choices.map((one) => one.index)))].sort(), [0, 1]);
  },

  async "the helper that gathers a stream"() {
    const runner = client.chat.completions.stream(chat);
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.role, "assistant");
    assert.ok(final.choices[0].message.content.length > 0);
  },

  async "a completion with log probabilities"() {
    const said = await client.completions.create({
      model: "demo", prompt: ["import os", "def add("], n: 2, max_tokens: 8, temperature: 1, seed: 3, logprobs: 1,
    });
    assert.deepEqual(said.choices.map((one) => one.index), [0, 1, 2, 3]);
    assert.ok(said.choices[0].logprobs.token_logprobs.length > 0);
  },

  async "a JSON schema"() {
    const schema = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
    const said = await client.chat.completions.create({
      ...chat, max_tokens: 32, response_format: { type: "json_schema", json_schema: { name: "x", schema, strict: true } },
    });
    if (said.choices[0].finish_reason === "stop") {
      assert.equal(typeof JSON.parse(said.choices[0].message.content).a, "number");
    }
  },

  async "responses and their stream"() {
    const asked = { model: "demo", input: "Say hello.", max_output_tokens: 16, temperature: 0 };
    const said = await client.responses.create(asked);
    assert.ok(said.output_text.length > 0);
    let text = "";
    const kinds = [];
    for await (const event of await client.responses.create({ ...asked, stream: true })) {
      kinds.push(event.type);
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(kinds[0], "response.created");
    assert.equal(text, said.output_text);
    assert.equal((await client.responses.retrieve(said.id)).output_text, said.output_text);
  },

  async "errors are the client's exceptions"() {
    await assert.rejects(client.chat.completions.create({ ...chat, model: "huge" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...chat, max_tokens: -1 }), OpenAI.BadRequestError);
    await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
    await assert.rejects(client.responses.retrieve("resp_none"), OpenAI.NotFoundError);
    try {
      await client.chat.completions.create({ ...chat, model: "huge" });
    } catch (error) {
      assert.equal(error.code, "model_not_found");
      assert.equal(error.param, "model");
    }
  },

  async "a base URL with a slash at its end"() {
    const other = new OpenAI({ baseURL: `${baseURL}/v1/`, apiKey: "none", maxRetries: 0 });
    assert.ok((await other.chat.completions.create(chat)).choices.length);
  },

  async "a stream that is left, and one that is aborted, free the engine"() {
    const long = { ...chat, max_tokens: 1500, ignore_eos: true, stream: true };
    for await (const part of await client.chat.completions.create(long)) {
      assert.ok(part);
      break;
    }
    const control = new AbortController();
    const stream = await client.chat.completions.create(long, { signal: control.signal });
    setTimeout(() => control.abort(), 100);
    let count = 0;
    try {
      for await (const part of stream) count += part ? 1 : 0;
    } catch (error) {
      assert.ok(error instanceof OpenAI.APIUserAbortError);
    }
    assert.ok(count > 0);
    const until = Date.now() + 5000;
    for (;;) {
      const page = await (await fetch(`${baseURL}/metrics`)).text();
      const under = [...page.matchAll(/^specpilot_gateway_in_flight\{model="demo".*\} (\S+)$/gm)];
      assert.ok(under.length > 0);
      if (under.every(([, count]) => Number(count) === 0)) break;
      assert.ok(Date.now() < until, "requests are still under way");
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },

  async "fifty at once on kept connections"() {
    const all = await Promise.all(Array.from({ length: 50 }, () => client.chat.completions.create({ ...chat, max_tokens: 4 })));
    assert.ok(all.every((said) => said.usage.completion_tokens > 0));
  },
};

for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok: ${name}`);
  } catch (error) {
    console.error(`failed: ${name}`);
    console.error(error);
    process.exit(1);
  }
}
