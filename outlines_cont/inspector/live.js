// --- live: the page asks its server to write, and to go on from any token ---------------------------

const KIND_NAMES = { text: "free text", regex: "regular expression", choice: "one of (a line each)", json: "JSON schema", grammar: "grammar (Lark)", write: "this text" };
const EXAMPLES = { text: "", regex: "[0-9]{4}-[0-9]{2}-[0-9]{2}", choice: "order\ninvoice", write: "\nDue: ", grammar: 'start: "yes" | "no"',
  json: '{"type": "object",\n "properties": {"item": {"type": "string"},\n  "quantity": {"type": "integer"}},\n "required": ["item", "quantity"]}' };
const live = { count: 0, history: [], undone: [], steps: [{ kind: "text", source: "", max_tokens: 100, temperature: 0 }], running: null };
const button = (name, click, more = {}) => el("button", { type: "button", click, ...more }, name);

function stepFields(step, index) {
  const title = el("b", {}, String(index + 1));
  const kind = el("select", { "aria-label": `Kind of step ${index + 1}`, change: () => { step.kind = kind.value; drawSteps(); } },
    ...Object.entries(KIND_NAMES).map(([key, name]) => el("option", { value: key, selected: key === step.kind }, name)));
  const number = (name, title, least) => el("label", { class: "small" }, title,
    el("input", { type: "number", min: least, step: name === "temperature" ? 0.1 : 1, value: step[name], size: 4, change: (event) => { step[name] = Number(event.target.value); } }));
  const texts = (name, title) => {
    const box = el("textarea", { rows: 1, "aria-label": `${title} of step ${index + 1}`, placeholder: `${title}, a line each`,
      input: () => { step[name] = box.value.split("\n").filter(Boolean); } });
    box.value = (step[name] ?? []).join("\n");
    return box;
  };
  const source = el("textarea", { rows: step.kind === "json" || step.kind === "grammar" ? 4 : 2, class: "source", placeholder: EXAMPLES[step.kind], "aria-label": `Source of step ${index + 1}`, input: () => { step.source = source.value; } });
  source.value = step.source;
  const remove = button("✕", () => { live.steps.splice(index, 1); drawSteps(); }, { "aria-label": `Remove step ${index + 1}` });
  const limits = step.kind === "write" ? [] : [el("div", { class: "limits" }, number("max_tokens", "tokens", 1), number("temperature", "temperature", 0)),
    el("details", { class: "small", open: Boolean(step.stops?.length || step.bans?.length) }, el("summary", {}, "stops and bans"), texts("stops", "Stop texts"), texts("bans", "Banned texts"))];
  const isBad = live.bad === index;
  if (isBad) source.setAttribute("aria-invalid", "true");
  return el("div", { class: isBad ? "step bad" : "step", role: "group", "aria-label": `Step ${index + 1}` }, el("div", { class: "head" }, title, kind, remove), ...(step.kind === "text" ? [] : [source]), ...limits);
}

function drawSteps() {
  $("steps").replaceChildren(...live.steps.map(stepFields));
}

function drawForm() {
  const prompt = el("textarea", { id: "prompt", rows: 4, "aria-label": "Prompt", placeholder: "Prompt" });
  const chat = el("label", { class: "small check" }, el("input", { type: "checkbox", id: "chat" }), "as a message to a chat model");
  const load = el("input", { type: "file", id: "load", accept: ".json", hidden: true, change: (event) => loadSession(event.target.files[0]) });
  const key = data.live.has_key ? el("input", { type: "password", id: "key", placeholder: "API key", "aria-label": "API key" }) : null;
  $("actions").replaceChildren(button("Run", runAll, { id: "run", class: "main", title: "Ctrl+Enter" }), button("Stop", () => live.running?.abort(), { id: "stop" }),
    button("Undo", undo, { id: "undo" }), button("Redo", redo, { id: "redo" }), button("Bookmark", bookmark, { id: "bookmark" }),
    button("Save", saveSession, { id: "save" }), button("Load", () => load.click(), { id: "open" }));
  const add = button("Add a step", () => { live.steps.push({ ...live.steps[0], kind: "text", source: "", stops: [], bans: [] }); drawSteps(); }, { id: "add" });
  const parts = [key, el("h2", {}, "Prompt"), prompt, chat, el("h2", {}, "Steps"), el("div", { id: "steps" }), add, load];
  $("live").replaceChildren(el("form", { submit: (event) => event.preventDefault() }, ...parts.filter(Boolean)));
  drawSteps();
}

view.hint = () => [
  el("h2", {}, "Nothing is written yet"),
  el("ol", {},
    el("li", {}, "Write a prompt, and choose what the steps write after it."),
    el("li", {}, "Press Run, or ", el("kbd", {}, "Ctrl"), " + ", el("kbd", {}, "Enter"), "."),
    el("li", {}, "Click a token to see what else was possible there, and go on with another.")),
  el("p", {}, button("Show an example", showExample, { id: "example" })),
];

function showExample() {
  $("prompt").value = "Message: Please send 3 lamps by 2026-05-04.\nOrder: ";
  live.steps = [{ ...live.steps[0], kind: "json", source: EXAMPLES.json }];
  $("run").focus();
  return runAll();
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); runAll(); }
});

// The number of the step that an error is about: a part of the request, or the step that was being written.
function stepOf(error, offset) {
  const found = /^steps\/(\d+)/.exec(error.param ?? "")?.[1] ?? error.step;
  return found === undefined ? null : Number(found) + offset;
}

function showError(error, offset) {
  const step = stepOf(error, offset);
  live.bad = step !== null && step < live.steps.length ? step : null;
  $("error").textContent = live.bad === null ? error.message : `Step ${step + 1}, ${KIND_NAMES[live.steps[step].kind]}: ${error.message}`;
  drawSteps();
  $("error").scrollIntoView({ block: "nearest" });
}

const runAll = () => {
  const body = { prompt: $("prompt").value, is_chat: $("chat").checked };
  return run(body, [], structuredClone(live.steps), [], 0);
};

function pieceAt(row, index) {
  return row.pieces.findLast((piece) => piece.start <= index && index < piece.stop);
}

// The state is cut before a token, and goes on with another, in the step that wrote it.
function goOn(index, token = null) {
  const row = view.row, piece = pieceAt(row, index), next = piece ?? row.pieces.find((one) => one.start >= index);
  const step = next ? next.step : row.steps.length, tokens = row.tokens.slice(0, index);
  const body = { state: row.state, ids: tokens.map((one) => one[ID]), start: piece?.start ?? null, token };
  const before = row.pieces.filter((one) => one.stop <= index && one !== piece).map((one) => ({ ...one, step: one.step - step }));
  return run(body, tokens, row.steps.slice(step), before, step);
}

view.choice = (id, text, index) => button("go on", () => goOn(index, id), { "aria-label": `Go on with ${text}`, class: "choice", "data-token": id });
view.again = (index) => el("p", {}, button("Write again from here", () => goOn(index), { id: "again" }));

async function run(body, tokens, steps, before, offset) {
  if (live.running) return;
  const row = { name: String(++live.count), tokens, steps, pieces: before, batch: 0, sample: 0, cached: 0, weight: 0, finish: "", state: null };
  live.running = new AbortController();
  live.history.push(view.row);
  $("error").textContent = "";
  live.bad = null;
  drawSteps();
  document.body.classList.add("running");
  open([...view.rows, row], row);
  try {
    const headers = { "Content-Type": "application/json", ...($("key")?.value ? { Authorization: `Bearer ${$("key").value}` } : {}) };
    const reply = await fetch("inspect/run", { method: "POST", headers, body: JSON.stringify({ ...body, steps }), signal: live.running.signal });
    if (!reply.ok) throw failed((await reply.json()).error);
    let written = body.start === null || body.start === undefined ? -1 : 0;  // the prompt comes first
    for await (const news of messages(reply.body)) {
      if (news.error?.message) throw failed({ step: Math.max(written, 0), ...news.error });
      if (news.pieces) written++;
      take(row, news, before);
    }
  } catch (error) {
    if (error.name !== "AbortError") showError(error, offset);
    if (row.tokens.length === tokens.length) view.rows = view.rows.filter((one) => one !== row);
  } finally {
    live.running = null;
    document.body.classList.remove("running");
    if (view.rows.includes(row)) live.undone = [];
    open(view.rows, view.rows.includes(row) ? row : live.history.pop() ?? undefined);
    if (document.activeElement === document.body) $("text").focus({ preventScroll: true });  // the button that was pressed is gone
    tell(row.note ?? "Stopped");
  }
}

const failed = ({ message, param, step }) => Object.assign(new Error(message), { param, step });

async function* messages(body) {
  let left = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (left + part.value).split("\n\n");
    left = lines.pop();
    yield* lines.map((line) => JSON.parse(line.replace(/^data: /, "")));
  }
}

// What comes replaces the tokens from `first` on.
function take(row, news, before) {
  const { first, tokens, ...facts } = news;
  row.tokens = row.tokens.slice(0, first).concat(tokens);
  if (facts.pieces) facts.pieces = [...before, ...facts.pieces];
  Object.assign(row, facts);
  if (facts.state) row.note = `${row.reused} of ${row.tokens.length} tokens not fed again`;
  if (view.row !== row) return;
  for (const span of view.spans.splice(first)) span.remove();
  for (const [index, token] of tokens.entries()) {
    const span = tokenSpan(token, first + index);
    span.className = `${classOf(token, first + index)} fresh`;
    view.spans.push(span);
    $("text").append(span);
  }
  $("text").lastChild?.scrollIntoView({ block: "nearest" });
  $("facts").replaceChildren(...factsOf(row));
  tell(`${row.tokens.length} tokens`);
}

function undo() {
  if (live.running || !live.history.length) return;
  const before = live.history.pop();
  live.undone.push(view.rows.at(-1));
  open(view.rows.slice(0, -1), before ?? undefined);
  tell("Undone");
}

function redo() {
  if (live.running || !live.undone.length) return;
  live.history.push(view.row);
  const row = live.undone.pop();
  open([...view.rows, row], row);
  tell("Redone");
}

function bookmark() {
  if (!view.row) return;
  view.row.mark = view.row.mark ? undefined : "★";
  open(view.rows, view.row);
  tell(view.row.mark ? "Bookmarked" : "Bookmark removed");
}

// Each row without the tokens that it shares with an earlier one, as in a page.
function packed(rows) {
  return rows.map((row, number) => {
    const counts = rows.slice(0, number).map((other) => other.tokens.findIndex((token, i) => token !== row.tokens[i]))
      .map((count, i) => count < 0 ? rows[i].tokens.length : count);
    const most = Math.max(...counts, 0);
    return { ...row, shared: [Math.max(counts.indexOf(most), 0), most], tokens: row.tokens.slice(most) };
  });
}

function saveSession() {
  const session = { format: "outlines-cont session", version: 1, model: data.live.model, prompt: $("prompt").value, chat: $("chat").checked,
    steps: live.steps, rows: packed(view.rows), active: view.rows.indexOf(view.row) };
  const link = el("a", { href: URL.createObjectURL(new Blob([JSON.stringify(session)], { type: "application/json" })), download: "session.json" });
  link.click();
  URL.revokeObjectURL(link.href);
}

async function loadSession(file) {
  try {
    const session = JSON.parse(await file.text());
    if (session.format !== "outlines-cont session" || session.version !== 1) throw new Error("expected a session that this page has saved");
    const rows = expanded(session.rows);
    Object.assign(live, { steps: session.steps, history: [], undone: [], count: Math.max(0, ...rows.map((row) => Number(row.name) || 0)) });
    Object.assign($("prompt"), { value: session.prompt });
    $("chat").checked = session.chat;
    drawSteps();
    open(rows, rows[session.active]);
    $("error").textContent = session.model === data.live.model ? "" : `This session is of the model ${session.model}: its tokens may be others here.`;
  } catch (error) {
    $("error").textContent = `The session cannot be read: ${error.message}`;
  }
}

document.body.classList.add("live");
drawForm();
open(view.rows);
