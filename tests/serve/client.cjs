// What the client of OpenAI for JavaScript makes of replies: node client.cjs URL, with `openai` and `zod` in NODE_PATH.
const OpenAI = require("openai");
const { zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const Order = z.object({ customer: z.string(), item: z.string(), quantity: z.number().int() });
const content = "Message: Hello, this is Ana Novak. Please send 3 lamps by 2026-05-04.";
const said = { model: "tiny", temperature: 0 };
const chat = { ...said, messages: [{ role: "user", content }], max_tokens: 100 };

async function main() {
  const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none" });
  const parsed = await client.chat.completions.parse({ ...chat, response_format: zodResponseFormat(Order, "order") });
  const stream = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
  let streamed = "";
  stream.on("content", (delta) => (streamed += delta));
  const whole = await stream.finalContent();
  const usage = await stream.totalUsage();
  const city = { name: "weather", parse: JSON.parse, function: ({ city }) => `Rain in ${city}.`, description: "The weather." };
  const parameters = { type: "object", properties: { city: { enum: ["Paris", "Oslo"] } }, required: ["city"], additionalProperties: false };
  const tools = [{ type: "function", function: { ...city, parameters } }];
  const runner = client.chat.completions.runTools({ ...chat, tools, tool_choice: { type: "function", function: { name: "weather" } }, parallel_tool_calls: false });
  const told = await runner.finalFunctionToolCallResult();
  const asked = { ...said, input: content, max_output_tokens: 100 };
  const response = await client.responses.parse({ ...asked, text: { format: zodTextFormat(Order, "order") } });
  let events = 0;
  for await (const event of await client.responses.create({ ...asked, stream: true })) events += event.type.endsWith(".delta") ? 1 : 0;
  console.log(JSON.stringify({ parsed: parsed.choices[0].message.parsed, same: streamed === whole, tokens: usage.total_tokens, told, response: response.output_parsed, events }));
}

main();
