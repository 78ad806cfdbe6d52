// Changes as they happen. The page keeps the newest ROWS_MAX; what it has not shown is counted.
import { copy, count, el, field, listen, moment, say, trouble } from "/static/page.js";

const ROWS_MAX = 500;
const WORDS = { "+": "added", "-": "removed", "~": "changed", "=": "is now" };

export function changes(main, scope) {
  const form = el("form", { class: "bar" },
    field("Database or collection", { name: "ns", value: scope, placeholder: "all databases" }),
    field("Filter", { name: "filter", placeholder: '{"operationType": "update"}', class: "wide" }),
    field("From", { name: "from", placeholder: "now, a token, 10m" }),
    el("button", { type: "submit" }, "Follow"));
  const pause = el("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const clear = el("button", { type: "button" }, "Clear");
  const state = el("p", { class: "state", id: "state" });
  const list = el("ol", { class: "events", "aria-label": "Changes, the newest first" });
  main.append(form, el("div", { class: "bar" }, pause, clear, state), list);

  let query = { ns: scope, filter: "", from: "" };
  let stream = null;
  let last = null;
  let waiting = [];
  let asked = false;
  let numbers = { events: 0, left: 0, missed: 0 };
  let status = "connecting";
  const isPaused = () => pause.getAttribute("aria-pressed") === "true";

  function report() {
    const words = [`${status}: ${count(numbers.events)} events`];
    if (numbers.left) words.push(`${count(numbers.left)} not shown, too many at a time`);
    if (numbers.missed) words.push(`${count(numbers.missed)} missed, this browser was too slow`);
    if (isPaused()) words.push(`paused, ${count(waiting.length)} waiting`);
    state.textContent = words.join("; ");
  }

  function draw() {
    asked = false;
    report();
    if (isPaused() || !waiting.length) return;
    const rows = document.createDocumentFragment();
    for (const event of waiting.reverse()) rows.append(row(event, resume));
    waiting = [];
    list.prepend(rows);
    while (list.childElementCount > ROWS_MAX) list.lastElementChild.remove();
  }

  function drawSoon() {
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }

  function follow() {
    stream?.close();
    trouble("");
    last = null;
    status = "connecting";
    numbers = { events: 0, left: 0, missed: 0 };
    report();
    const address = () => {
      const given = { ...query, ...(last === null ? {} : { from: last }) };
      return `/api/tail?${new URLSearchParams(Object.entries(given).filter(([, value]) => value))}`;
    };
    stream = listen(address, {
      opened: () => { status = "live"; drawSoon(); },
      events: ({ events, notShown }) => {
        last = events.at(-1).token;
        numbers.events += events.length + notShown;
        numbers.left += notShown;
        waiting.push(...events);
        if (waiting.length > ROWS_MAX) numbers.left += waiting.splice(0, waiting.length - ROWS_MAX).length;
        drawSoon();
      },
      missed: (missed) => { numbers.missed += missed.count; numbers.events += missed.count; drawSoon(); },
      failed: ({ error }) => { stream.close(); status = "ended"; trouble(error); report(); },
      lost: () => { status = "connection lost, trying again"; report(); refused(address()); },
    });
  }

  // An EventSource does not say why it was refused; the same request does.
  async function refused(address) {
    const stop = new AbortController();
    try {
      const response = await fetch(address, { signal: stop.signal });
      if (response.status === 400) { stream.close(); status = "ended"; trouble((await response.json()).error); report(); }
    } catch { /* the console is gone; the next attempt shows it */ }
    stop.abort();
  }

  function resume(token) {
    form.elements.from.value = token;
    form.requestSubmit();
    say("following from the token");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    query = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
    list.replaceChildren();
    waiting = [];
    follow();
  });
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    draw();
  });
  clear.addEventListener("click", () => { list.replaceChildren(); waiting = []; report(); });
  follow();
  return () => stream.close();
}

function row(event, resume) {
  const name = [event.operation, event.namespace, event.key].filter(Boolean).join(" ");
  const details = el("div", { class: "details", hidden: true });
  const toggle = el("button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-label": `Details of ${name}` },
    el("span", { class: "time" }, moment(event.at).slice(11)), " ",
    el("span", { class: `operation ${event.operation}` }, event.operation), " ",
    el("span", { class: "namespace" }, event.namespace), " ",
    el("code", {}, event.key));
  toggle.addEventListener("click", () => {
    const opens = details.hidden;
    if (opens && !details.childElementCount) details.append(...detailsOf(event));
    details.hidden = !opens;
    toggle.setAttribute("aria-expanded", String(opens));
  });
  return el("li", {},
    el("div", { class: "line" }, toggle,
      el("button", { type: "button", class: "small", "aria-label": `Copy the token of ${name}`, onclick: () => copy(event.token, "the token") }, "Copy token"),
      el("button", { type: "button", class: "small", "aria-label": `Follow from after ${name}`, onclick: () => resume(event.token) }, "From here")),
    diff(event.changes.slice(0, 3), true), details);
}

function diff(changes, isShort) {
  return changes.length ? el("ul", { class: isShort ? "diff short" : "diff" }, changes.map((change) =>
    el("li", { class: { "+": "added", "-": "removed", "~": "changed" }[change.sign] },
      el("span", { title: WORDS[change.sign] }, change.sign), " ", change.path && el("b", {}, change.path), " ", el("code", {}, change.text)))) : "";
}

function detailsOf(event) {
  const part = (title, text) => text ? [el("h4", {}, title), el("pre", { tabindex: "0", role: "region", "aria-label": title }, text)] : [];
  return [
    ...(event.changes.length > 3 ? [el("h4", {}, "All changed fields"), diff(event.changes, false)] : []),
    ...(event.changesLeft ? [el("p", {}, `and ${event.changesLeft} more`)] : []),
    ...part("Before", event.before), ...part("After", event.after), ...part("Description", event.description),
    ...part("Resume token", event.token),
  ];
}
