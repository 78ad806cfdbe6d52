// Slow queries of the profiler, and the index that would help each.
import { copy, count, el, get, table, trouble } from "/static/page.js";

export function slow(main) {
  const draw = async () => {
    trouble("");
    try {
      result.replaceChildren(...found(await get("/api/slow")));
    } catch (error) {
      trouble(error.message);
    }
  };
  const result = el("div", { id: "slow" }, el("p", {}, "Asking …"));
  main.append(el("div", { class: "bar" }, el("button", { type: "button", onclick: draw }, "Refresh")), result);
  draw();
}

function found({ shapes, off, refused }) {
  const rows = shapes.map((shape) => [
    shape.namespace, shape.operation, question(shape), advice(shape), count(shape.count), `${count(shape.millis)} ms`,
    `${count(shape.millisMax)} ms`, `${count(shape.examined)} / ${count(shape.returned)}`, shape.plan,
  ]);
  return [
    rows.length
      ? table("Slowest in total first", ["Collection", "Operation", "Filter", "Index that would help", "Count", "Time", "Longest", "Examined / returned", "Plan"], rows, [4, 5, 6, 7])
      : el("p", {}, "The profiler has recorded nothing."),
    off.length ? el("p", {}, "The profiler is off for ", off.join(", "), ". To turn it on: ", el("code", {}, "db.setProfilingLevel(1, {slowms: 20})")) : "",
    refused.length ? el("p", {}, `Not shown, as this user may not read the profiler: ${refused.join(", ")}`) : "",
  ].filter(Boolean);
}

function question(shape) {
  return el("div", {}, el("code", {}, shape.filter), shape.sort ? el("div", {}, "sorted by ", el("code", {}, shape.sort)) : "");
}

function advice(shape) {
  if (!shape.index) return shape.why;
  return el("div", {}, el("code", {}, shape.index), " ",
    el("button", { type: "button", class: "small", "aria-label": `Copy the index ${shape.index}`, onclick: () => copy(shape.index, "the index") }, "Copy"),
    el("p", {}, shape.why));
}
