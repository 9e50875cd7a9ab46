// The inspector: the rows of a state as a tree, the tokens of one row in colours, and what is known of one token.
// Texts are put into the page as text nodes alone; no value of `data` is ever read as HTML.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const FIRST = data.first ?? 0;  // the tokens before it are not shown
const ID = 0, TEXT = 1, KIND = 2, LOGPROB = 3, SAMPLED = 4, MORE = 5;  // of a token

const KINDS = {
  p: ["prompt", "given at the beginning"], a: ["appended", "given later, or encoded anew"],
  g: ["drawn", "by the sampler"], f: ["forced", "the constraint left no choice"],
  h: ["healed", "respells the end of the text before"], d: ["drafted", "drawn, as a draft had guessed"],
  r: ["retried", "drawn after others were refused here"], c: ["chosen", "on this page"],
};
const percent = (p) => p === null ? "–" : p > 0 && p < 0.0001 ? "<0.01 %" : `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;
const PARTS = [[0.01, "< 1 %"], [0.1, "1 to 10 %"], [0.5, "10 to 50 %"], [0.9, "50 to 90 %"], [Infinity, "90 % or more"]];
const BITS = [[0.1, "< 0.1"], [1, "0.1 to 1"], [2, "1 to 2"], [4, "2 to 4"], [Infinity, "4 or more"]];
const own = (token) => token[LOGPROB] ?? token[MORE].model ?? null;
const MODES = {
  how: { name: "how it came about" },
  probability: { name: "probability", value: (t) => own(t) === null ? null : Math.exp(own(t)), levels: PARTS, isHotWhenLow: true },
  entropy: { name: "entropy (bits)", value: (t) => t[MORE].entropy ?? null, levels: BITS },
  masked: { name: "masked probability", value: (t) => t[MORE].masked ?? null, levels: PARTS },
};

const view = { rows: [], tree: null, row: null, at: -1, mode: "how", spans: [], tells: null };

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function expanded(rows) {
  const found = [];
  for (const row of rows) {
    const [other, count] = row.shared;
    found.push({ ...row, tokens: count ? found[other].tokens.slice(0, count).concat(row.tokens) : row.tokens });
  }
  return found;
}

// --- the tree of rows ---------------------------------------------------------------------------

function branch(rows, start) {
  const first = rows[0].tokens, groups = new Map();
  let stop = start;
  while (stop < first.length && rows.every((row) => row.tokens[stop] === first[stop])) stop++;
  const ended = rows.filter((row) => row.tokens.length === stop);
  for (const row of rows) {
    if (row.tokens.length > stop) groups.set(row.tokens[stop], [...(groups.get(row.tokens[stop]) ?? []), row]);
  }
  const children = [...groups.values()].map((group) => branch(group, stop));
  // A row that ends where others go on is a leaf of its own.
  if (children.length || ended.length > 1) children.unshift(...ended.map((row) => ({ rows: [row], start: stop, stop, children: [] })));
  return { rows, start, stop, children };
}

const textOf = (tokens) => tokens.map((token) => token[TEXT]).join("");

function excerpt(node) {
  const text = textOf(node.rows[0].tokens.slice(node.start, node.stop)).replace(/\s+/g, " ");
  return text.length > 44 ? `${text.slice(0, 20)} … ${text.slice(-20)}` : text || (node.children.length ? "(all)" : "(ends here)");
}

function drawTree() {
  let count = 0;
  view.items = [];
  const item = (node, level) => {
    const isLeaf = !node.children.length, label = el("span", { class: "node" }, excerpt(node));
    if (isLeaf) label.prepend(el("small", {}, leafFacts(node.rows[0])));
    const made = el("li", { role: "treeitem", id: `n${count++}`, "aria-level": level, "aria-expanded": isLeaf ? undefined : "true" }, label);
    Object.assign(node, { made, label });
    view.items.push(node);
    if (!isLeaf) made.append(el("ul", { role: "group" }, ...node.children.map((child) => item(child, level + 1))));
    return made;
  };
  view.tree = view.rows.length ? branch(view.rows, 0) : null;
  $("tree").replaceChildren(...(view.tree ? [item(view.tree, 1)] : []));
}

function leafFacts(row) {
  const name = row.name ?? `[${row.batch}, ${row.sample}]`;
  return [name, row.weight ? row.weight.toFixed(2) : "", row.error ? "error" : row.finish, row.mark ?? ""].filter(Boolean).join(" · ");
}

const leafOf = (row) => view.items.find((node) => !node.children.length && node.rows[0] === row);

function markTree() {
  for (const node of view.items) {
    const isLeaf = !node.children.length, isActive = node.rows.includes(view.row);
    node.label.classList.toggle("active", isActive);
    node.label.classList.toggle("at", node === view.item);
    if (isLeaf) node.made.setAttribute("aria-selected", String(isActive));
  }
  if (view.item) $("tree").setAttribute("aria-activedescendant", view.item.made.id);
}

function chooseItem(node) {
  view.item = node;
  if (!node.rows.includes(view.row)) show(node.rows[0]);
  if (node.stop > node.start) select(node.start);
  markTree();
  node.label.scrollIntoView({ block: "nearest" });
}

const isHidden = (node) => node.made.parentElement.closest("ul[hidden]") !== null;

function fold(node, isOpen) {
  if (!node.children.length) return;
  node.made.setAttribute("aria-expanded", String(isOpen));
  node.made.querySelector("ul").hidden = !isOpen;
}

$("tree").addEventListener("click", (event) => {
  const found = view.items.find((node) => node.label === event.target.closest(".node"));
  if (found) chooseItem(found);
});

$("tree").addEventListener("keydown", (event) => {
  const shown = view.items.filter((node) => !isHidden(node)), at = shown.indexOf(view.item);
  const isOpen = view.item?.made.getAttribute("aria-expanded") === "true";
  const parent = view.items.find((node) => node.children.includes(view.item));
  const moves = {
    ArrowDown: () => shown[at + 1], ArrowUp: () => shown[Math.max(at - 1, 0)], Home: () => shown[0], End: () => shown.at(-1),
    ArrowRight: () => isOpen ? view.item.children[0] : (fold(view.item, true), view.item),
    ArrowLeft: () => isOpen ? (fold(view.item, false), view.item) : parent, Enter: () => view.item,
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  const next = moves[event.key]();
  if (next) chooseItem(next);
});

// --- the tokens of a row ------------------------------------------------------------------------

function show(row) {
  view.row = row;
  view.at = -1;
  view.spans = row.tokens.map(tokenSpan);
  view.item = leafOf(row) ?? view.item;
  $("facts").replaceChildren(...factsOf(row));
  paint();
  $("text").replaceChildren(...view.spans);
  markTree();
  tell(`Row ${row.name ?? `${row.batch}, ${row.sample}`}, ${row.tokens.length} tokens`);
  details(-1);
}

const plainSpan = el("span", { role: "option", "aria-selected": "false" });

function tokenSpan(token, index) {
  const span = plainSpan.cloneNode();  // there may be thousands
  span.id = `t${index}`;
  span.textContent = token[TEXT] === "" ? "·" : token[TEXT].replaceAll("\n", "↵\n");
  const { picture } = token[MORE];
  if (picture?.startsWith("data:image/jpeg;base64,")) span.replaceChildren(el("img", { src: picture, alt: token[TEXT] }));
  return span;
}

function factsOf(row) {
  const known = [`${row.tokens.length} tokens`, `${row.cached} cached`, row.weight ? `log-probability ${row.weight.toFixed(3)}` : "",
    row.retries ? `${row.retries} retries` : "", row.finish, FIRST ? `the first ${FIRST} are not shown` : "",
    data.more ? `${data.more} more rows` : "", row.source ? `last span: ${row.source.length > 160 ? `${row.source.slice(0, 159)}…` : row.source}` : "", row.note ?? ""];
  const line = known.filter(Boolean).join(" · ");
  return [line, row.error ? el("strong", { class: "error" }, ` ${row.error}`) : null].filter(Boolean);
}

function kindOf(token) {
  const { chosen, retries, drafted } = token[MORE];
  return chosen ? "c" : retries ? "r" : drafted ? "d" : token[KIND];
}

function bucket(token, mode) {
  const value = mode.value(token);
  if (value === null) return "none";
  const level = mode.levels.findIndex(([limit]) => value < limit);
  return `b${mode.isHotWhenLow ? 4 - level : level}`;
}

function classOf(token, index) {
  const mode = MODES[view.mode], special = token[MORE].special ? " special" : "";
  if (mode.value) return `t ${bucket(token, mode)}${special}`;
  return `t how k-${kindOf(token)}${special}${index + FIRST < (view.row?.reused ?? 0) ? " reused" : ""}`;
}

function paint() {
  if (!view.row) return;
  view.row.tokens.forEach((token, index) => { view.spans[index].className = classOf(token, index); });
  view.spans[view.at]?.classList.add("at");
  drawStrip();
  drawLegend();
}

function drawLegend() {
  const mode = MODES[view.mode], there = new Set(view.row.tokens.map(kindOf));
  const sample = (name, classes, title) => el("span", { class: `t ${classes}`, title }, name);
  const samples = mode.value
    ? mode.levels.map(([, name], level) => sample(name, `b${mode.isHotWhenLow ? 4 - level : level}`))
    : Object.entries(KINDS).filter(([kind]) => there.has(kind)).map(([kind, [name, why]]) => sample(name, `how k-${kind}`, why));
  if (!mode.value && view.row.reused) samples.push(sample(`reused: the first ${view.row.reused}, not fed again`, "how reused"));
  $("legend").replaceChildren(...samples);
}

function drawStrip() {
  const mode = MODES[view.mode].value ? MODES[view.mode] : MODES.probability, count = view.row.tokens.length, highs = [];
  const step = Math.max(Math.ceil(count / 1000), 1);
  const height = (token) => {
    const value = mode.value(token);
    return value === null ? 0 : mode === MODES.probability ? Math.min(-Math.log2(value) / 10, 1) : Math.min(value / mode.levels[3][0], 1);
  };
  for (let i = 0; i < count; i += step) highs.push(Math.max(...view.row.tokens.slice(i, i + step).map(height)));
  const points = highs.map((high, i) => `${i * step},${(38 - 36 * high).toFixed(1)} ${Math.min((i + 1) * step, count)},${(38 - 36 * high).toFixed(1)}`);
  const strip = $("strip"), line = document.createElementNS(strip.namespaceURI, "path"), mark = document.createElementNS(strip.namespaceURI, "line");
  strip.setAttribute("viewBox", `0 0 ${Math.max(count, 1)} 40`);
  const area = line.cloneNode(), path = `M${points.join(" L")}`;
  line.setAttribute("d", points.length ? path : "");
  area.setAttribute("d", points.length ? `${path} L${count},40 L0,40 Z` : "");
  area.setAttribute("class", "area");
  strip.replaceChildren(area, line, mark);
  moveMark();
}

function moveMark() {
  const mark = $("strip").lastChild;
  for (const [name, value] of Object.entries({ x1: view.at, x2: view.at, y1: 0, y2: view.at < 0 ? 0 : 40 })) mark?.setAttribute(name, value);
}

$("strip").addEventListener("click", (event) => {
  const box = $("strip").getBoundingClientRect();
  if (view.row) select(Math.floor((event.clientX - box.left) / box.width * view.row.tokens.length));
});

export function select(index) {
  if (!view.row?.tokens.length) return;
  view.spans[view.at]?.classList.remove("at");
  view.spans[view.at]?.setAttribute("aria-selected", "false");
  view.at = Math.min(Math.max(index, 0), view.row.tokens.length - 1);
  const span = view.spans[view.at];
  span.classList.add("at");
  span.setAttribute("aria-selected", "true");
  span.scrollIntoView({ block: "nearest" });
  $("text").setAttribute("aria-activedescendant", span.id);
  moveMark();
  details(view.at);
  tell(spoken(view.at));
}

function spoken(index) {
  const token = view.row.tokens[index], chance = own(token);
  return `${JSON.stringify(token[TEXT])}, ${KINDS[kindOf(token)][0]}${chance === null ? "" : `, ${percent(Math.exp(chance))}`}`;
}

function besideLine(isDown) {
  const here = view.spans[Math.max(view.at, 0)].getBoundingClientRect();
  const step = isDown ? 1 : -1;
  let index = Math.max(view.at, 0) + step, best = null;
  for (let line = null; view.spans[index]; index += step) {
    const box = view.spans[index].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < 4) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > 4) break;
    if (best === null || Math.abs(box.left - here.left) < Math.abs(view.spans[best].getBoundingClientRect().left - here.left)) best = index;
  }
  return best ?? view.at;
}

$("text").addEventListener("keydown", (event) => {
  if (!view.row) return;
  const moves = {
    ArrowRight: () => view.at + 1, ArrowLeft: () => view.at - 1, ArrowDown: () => besideLine(true), ArrowUp: () => besideLine(false),
    Home: () => 0, End: () => view.row.tokens.length - 1, PageDown: () => view.at + 50, PageUp: () => view.at - 50,
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  select(moves[event.key]());
});

function indexOf(target) {
  const span = target.closest(".t");
  return span ? Number(span.id.slice(1)) : null;
}

$("text").addEventListener("click", (event) => {
  const index = indexOf(event.target);
  if (index !== null) select(index);
});

let hovered = null, isAwaited = false;
function point(index) {
  hovered = index;
  if (isAwaited || $("details").contains(document.activeElement)) return;
  isAwaited = true;
  requestAnimationFrame(() => {
    isAwaited = false;
    // What is shown already stays, as the pointer may be on its way to a button there.
    if ((hovered ?? view.at) !== shown) details(hovered ?? view.at);
  });
}
$("text").addEventListener("pointerover", (event) => point(indexOf(event.target)));
$("text").addEventListener("pointerleave", () => point(null));

// --- what is known of a token -------------------------------------------------------------------

let shown = null; // the index of the token whose details are there

function details(index) {
  shown = index;
  const token = view.row?.tokens[index];
  if (!token) {
    const said = view.rows.length ? "Point at a token, or go to the text and use the arrow keys." : "What is known of a token is shown here.";
    $("details").replaceChildren(el("p", { class: "small" }, said));
    return;
  }
  const more = token[MORE], [kind, why] = KINDS[kindOf(token)];
  const rows = [["text", JSON.stringify(token[TEXT])], ["id", token[ID]], ["position", index + FIRST], ["how", `${kind}: ${why}`]];
  if (more.bytes) rows.push(["bytes", `${more.bytes}, a part of a character`]);
  if (own(token) !== null) rows.push(["model", `${percent(Math.exp(own(token)))} (log ${own(token).toFixed(4)})`]);
  if (token[SAMPLED] !== null && token[KIND] === "g") rows.push(["as drawn", `${percent(Math.exp(token[SAMPLED]))} (masked, warped)`]);
  if (more.entropy !== undefined) rows.push(["entropy", `${more.entropy.toFixed(2)} bits`]);
  if (more.allowed !== undefined) rows.push(["allowed", `${more.allowed} tokens; ${percent(more.masked)} masked`]);
  if (more.retries) rows.push(["retries", more.retries]);
  if (more.refused?.length) rows.push(["refused here", more.refused.map((text) => JSON.stringify(text)).join(" ")]);
  if (more.taken) rows.push(["taken back", JSON.stringify(more.taken)]);
  const list = el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
  const again = index && view.again ? [view.again(index)] : [];
  $("details").replaceChildren(list, ...again, ...choices(token, index), ...reasons(more));
}

function choices(token, index) {
  const { top, inside } = token[MORE];
  if (!top) return [el("p", { class: "small" }, data.live ? "" : "state.inspect(path, top=10) shows what else was possible.")];
  const allowed = inside && new Map(inside.map(([id, , logprob]) => [id, logprob]));
  const listed = new Map([...top, ...(inside ?? [])].map(([id, text, logprob]) => [id, { id, text, logprob: null }]));
  for (const [id, , logprob] of top) listed.get(id).logprob = logprob;
  const lines = [...listed.values()].map((one) => choiceRow(one, token, index, allowed));
  const head = el("tr", {}, ...["token", "model", ...(allowed ? ["masked"] : []), ...(data.live ? [""] : [])].map((name, i) => el("th", { scope: "col", class: i ? "n" : undefined }, name)));
  return [el("h3", {}, "Most probable"), el("table", {}, head, ...lines)];
}

function choiceRow({ id, text, logprob }, token, index, allowed) {
  const inside = allowed?.get(id) ?? null, isOut = allowed && inside === null;
  const number = (value) => {
    const cell = el("td", { class: "n bar" }, value === null ? (isOut ? "✕" : "") : percent(Math.exp(value)));
    if (value !== null) cell.style.setProperty("--share", `${(100 * Math.exp(value)).toFixed(1)}%`);
    return cell;
  };
  const cells = [el("td", {}, el("code", {}, JSON.stringify(text))), number(logprob)];
  if (allowed) cells.push(number(inside));
  if (data.live) cells.push(el("td", {}, isOut ? null : view.choice?.(id, text, index) ?? null));
  return el("tr", { class: [id === token[ID] ? "own" : "", isOut ? "out" : ""].join(" ") }, ...cells);
}

function reasons({ wanted, why }) {
  return [["What must follow", wanted], ["Why not", why]].filter(([, text]) => text)
    .flatMap(([title, text]) => [el("h3", {}, title), el("p", { class: title === "Why not" ? "small" : "small grammar" }, text)]);
}

// --- the switch, and what is told to screen readers, at most once in 600 ms -----------------------

export function tell(text) {
  if (view.tells === null) setTimeout(() => { $("status").textContent = view.tells; view.tells = null; }, 600);
  view.tells = text;
}

function setMode(mode) {
  view.mode = mode;
  paint();
  tell(`Coloured by ${MODES[mode].name}`);
}

function drawModes() {
  const has = (mode) => !mode.value || view.rows.some((row) => row.tokens.some((token) => mode.value(token) !== null));
  const radio = (key, mode) => el("label", {}, el("input", { type: "radio", name: "mode", value: key, checked: key === view.mode, change: () => setMode(key) }), ` ${mode.name}`);
  $("modes").replaceChildren(...Object.entries(MODES).filter(([, mode]) => has(mode)).map(([key, mode]) => radio(key, mode)));
}

function open(rows, chosen = rows[0]) {
  view.rows = rows;
  drawTree();
  drawModes();
  $("hint").hidden = Boolean(chosen);
  if (chosen) show(chosen);
  else clear();
}

view.hint = () => [el("p", {}, "This state has no rows.")];

function clear() {
  Object.assign(view, { row: null, item: null, at: -1, spans: [] });
  for (const id of ["text", "facts", "strip", "legend"]) $(id).replaceChildren();
  $("hint").replaceChildren(...view.hint());
  details(-1);
}

document.body.classList.toggle("single", !data.live && data.rows.length === 1);
open(expanded(data.rows));
