// Collections with their sizes; one of them with its indexes, a query box, documents and the plan of the query.
import { count, el, facts, field, get, size, table, trouble } from "/static/page.js";

export function collections(main, namespace) {
  const show = namespace ? one(main, namespace) : all(main);
  show.catch((error) => trouble(error.message));
}

const link = (text, view, name) => el("a", { href: `#${view}/${encodeURIComponent(name)}` }, text);

async function all(main) {
  const { collections: found, left } = await get("/api/collections");
  const rows = found.map((one) => {
    const name = `${one.database}.${one.collection}`;
    return [link(name, "collections", name), one.type, count(one.count), size(one.bytes), size(one.storageBytes), count(one.indexes), size(one.indexBytes)];
  });
  main.append(table("Collections of all databases", ["Collection", "Type", "Documents", "Size", "On disk", "Indexes", "Index size"], rows, [2, 3, 4, 5, 6]));
  if (left) main.append(el("p", {}, `and ${left} more`));
}

async function one(main, namespace) {
  const found = await get("/api/collection", { ns: namespace });
  main.append(el("h3", {}, namespace), el("p", {}, link("All collections", "collections", "").cloneNode(true), " · ", link("Follow its changes", "changes", namespace)));
  if (found.options !== "{}") main.append(el("p", {}, "Options: ", el("code", {}, found.options)));
  main.append(table("Indexes", ["Index", "Key", "Size", "Uses", "Options"],
    found.indexes.map((index) => [index.name, el("code", {}, index.key), size(index.bytes), count(index.uses), index.options === "{}" ? "" : el("code", {}, index.options)]), [2, 3]));
  const form = el("form", { class: "bar" },
    field("Filter or pipeline", { name: "filter", placeholder: '{"qty": 3}, or [{"$group": …}]', class: "wide" }),
    field("Sort", { name: "sort", placeholder: '{"_id": -1}' }),
    field("Fields", { name: "projection", placeholder: "all" }),
    el("button", { type: "submit" }, "Find"),
    el("button", { type: "button", id: "explain" }, "Explain"));
  const result = el("section", { "aria-label": "Result", "aria-live": "polite" });
  main.append(el("h3", {}, "Query"), form, result);

  const ask = async (path, draw, skip = 0) => {
    trouble("");
    try {
      const answer = await get(path, { ns: namespace, ...Object.fromEntries(new FormData(form)), skip: String(skip) });
      result.replaceChildren(...draw(answer, skip));
    } catch (error) {
      result.replaceChildren();
      trouble(error.message);
    }
  };
  const documents = (answer, skip) => [
    el("p", {}, answer.documents.length ? `Documents ${skip + 1} to ${skip + answer.documents.length}` : "No documents"),
    el("div", { class: "documents" }, answer.documents.map((text, index) =>
      el("pre", { tabindex: "0", role: "region", "aria-label": `Document ${skip + index + 1}` }, text))),
    el("div", { class: "bar" },
      skip ? el("button", { type: "button", onclick: () => ask("/api/documents", documents, Math.max(skip - 20, 0)) }, "Previous") : "",
      answer.more ? el("button", { type: "button", onclick: () => ask("/api/documents", documents, skip + 20) }, "Next") : ""),
  ];
  form.addEventListener("submit", (event) => { event.preventDefault(); ask("/api/documents", documents); });
  form.querySelector("#explain").addEventListener("click", () => ask("/api/explain", plan));
  ask("/api/documents", documents);
}

function plan(answer) {
  const { returned, ms, keys, documents } = answer.totals;
  return [
    facts([["Returned", count(returned)], ["Keys examined", count(keys)], ["Documents examined", count(documents)], ["Time", `${count(ms)} ms`], ["Rejected plans", answer.rejected]]),
    answer.advice ? el("p", { class: "advice" }, answer.advice) : "",
    el("ul", { class: "plan", "aria-label": "Plan, each stage with the stages that feed it" }, stage(answer.root)),
  ].filter(Boolean);
}

function stage(node) {
  return el("li", {},
    el("div", { class: `stage ${node.stage === "COLLSCAN" ? "scan" : ""}` },
      el("b", {}, node.stage),
      Object.entries(node.numbers).map(([title, number]) => el("span", {}, `${count(number)} ${title}`)),
      Object.entries(node.texts).map(([title, text]) => el("span", { class: "text" }, `${title} `, el("code", {}, text)))),
    node.children.length ? el("ul", {}, node.children.map(stage)) : "");
}
