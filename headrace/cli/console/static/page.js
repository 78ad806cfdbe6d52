// Elements, requests and texts that the views share. Text of the server becomes text nodes, never markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export async function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "");
  return answerOf(await fetch(`${path}?${new URLSearchParams(given)}`));
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return answerOf(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function answerOf(response) {
  const text = await response.text();
  if (response.headers.get("content-type")?.startsWith("application/json")) {
    const answer = JSON.parse(text);
    if (response.ok) return answer;
    throw new Error(answer.error);
  }
  throw new Error(text || `the console answered ${response.status}`);
}

// Server-sent events until `close`. `address` is asked again for each attempt, so that a view can say where to go on.
export function listen(address, handlers) {
  let source = null;
  let timer = null;
  const open = () => {
    source = new EventSource(address());
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => handle(event.data === undefined ? null : JSON.parse(event.data)));
    }
    source.onerror = () => {
      source.close();
      handlers.lost?.();
      timer = setTimeout(open, 2000);
    };
  };
  open();
  return { close() { clearTimeout(timer); source.close(); } };
}

export function say(text) {
  document.getElementById("said").textContent = text;
}

export function trouble(text) {
  const shown = document.getElementById("trouble");
  shown.hidden = !text;
  if (shown.textContent !== text) shown.textContent = text;
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} is copied`);
  } catch {
    say(`${what} cannot be copied: the browser does not allow it`);
  }
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US", { maximumFractionDigits: 1 });
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const whole = Math.floor(seconds / length);
    if (whole) parts.push(`${whole} ${unit}`);
    seconds -= whole * length;
  }
  return parts.slice(0, 2).join(" ");
}

export function moment(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().replace("T", " ").replace("Z", "");
}

// A table with its titles; `right` are the columns of numbers. A cell is a text or an element.
export function table(caption, titles, rows, right = []) {
  const cell = (tag, content, column) => el(tag, { class: right.includes(column) ? "number" : null, scope: tag === "th" ? "col" : null }, content);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, titles.map((title, column) => cell("th", title, column)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((content, column) => cell("td", content instanceof Node ? content : String(content ?? ""), column)))))));
}

export function field(label, attributes) {
  return el("label", {}, el("span", {}, label), el("input", { autocomplete: "off", spellcheck: "false", ...attributes }));
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([title, text]) => el("div", {}, el("dt", {}, title), el("dd", {}, String(text)))));
}
