// The page's frame: signing in, and the view that the address names.
import { el, field, get, post, trouble } from "/static/page.js";
import { changes } from "/static/changes.js";
import { collections } from "/static/collections.js";
import { jobs } from "/static/jobs.js";
import { server } from "/static/server.js";
import { slow } from "/static/slow.js";
import { streams } from "/static/streams.js";

const VIEWS = {
  changes: ["Changes", changes],
  collections: ["Collections", collections],
  server: ["Server", server],
  streams: ["Streams", streams],
  slow: ["Slow queries", slow],
  jobs: ["Jobs", jobs],
};
const main = document.getElementById("main");
let close = null;

// A view fills the element and returns a function that ends what it has begun, or nothing.
function show() {
  const [name, ...words] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const [title, view] = VIEWS[name] ?? VIEWS.changes;
  close?.();
  trouble("");
  for (const link of document.querySelectorAll("nav a")) {
    if (link.textContent === title) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} · Headrace console`;
  main.replaceChildren(el("h2", {}, title));
  scrollTo(0, 0);
  close = view(main, words.join("/"));
}

function signIn(session) {
  const user = field("User", { name: "user", required: true, autocomplete: "username" });
  const password = field("Password", { name: "password", type: "password", required: true });
  const database = field("Database of the user", { name: "database", value: "admin", required: true });
  const form = el("form", { class: "sign-in" }, el("p", {}, `${session.server} wants a user.`), user, password, database,
    el("button", { type: "submit" }, "Sign in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    trouble("");
    try {
      started(await post("/api/sign-in", Object.fromEntries(new FormData(form))));
    } catch (error) {
      trouble(error.message);
    }
  });
  main.replaceChildren(el("h2", {}, "Sign in"), form);
  user.querySelector("input").focus();
}

function started(session) {
  const words = [session.server, session.version && `version ${session.version}`, session.replicaSet && `replica set ${session.replicaSet}`];
  const shown = document.getElementById("server");
  shown.replaceChildren(words.filter(Boolean).join(" · "));
  if (session.wantsUser) return signIn(session);
  if (session.user) {
    shown.append(` · ${session.user} `, el("button", { type: "button", class: "small", onclick: signOut }, "Sign out"));
  }
  document.getElementById("views").replaceChildren(
    ...Object.entries(VIEWS).map(([name, [title]]) => el("a", { href: `#${name}` }, title)));
  window.onhashchange = () => { if (location.hash !== "#main") { show(); main.focus(); } };
  show();
}

async function signOut() {
  await post("/api/sign-out", {});
  location.hash = "";
  location.reload();
}

try {
  started(await get("/api/session"));
} catch (error) {
  main.replaceChildren();
  trouble(error.message);
}
