// The server's load: operations, commits, latencies, memory by holder.
import { count, duration, el, facts, listen, size, table, trouble } from "/static/page.js";
import { followSamples, makePlot } from "/static/plot.js";

const OPERATIONS = ["insert", "query", "update", "delete", "getmore", "command"];

export function server(main) {
  const now = el("div", { id: "now" }, el("p", {}, "Waiting for the first figures …"));
  const holders = el("div");
  const milliseconds = (number) => `${count(number)} ms`;
  const plots = [
    makePlot("Operations a second", OPERATIONS.map((name) => [name, name]), count),
    makePlot("Commits a second", [["commits", "commits"]], count),
    makePlot("Latency", [["roundTripMs", "round trip of a ping"], ["readsMs", "reads"], ["writesMs", "writes"], ["commandsMs", "commands"]], milliseconds),
    makePlot("Memory", [["residentBytes", "resident"], ["counted", "held by clients"]], size),
    makePlot("Connections", [["connections", "connections"]], count),
  ];
  main.append(now, el("div", { class: "plots" }, plots.map((plot) => plot.element)), holders);
  return followSamples(listen, trouble, plots, (status) => {
    const memory = status.memory;
    now.replaceChildren(facts([
      ["Server", `${status.process} ${status.version}`], ["Up", duration(status.uptimeSecs)], ["Connections", count(status.connections)],
      ["Commits a second", count(status.commitsPerSec)], ["Writes a commit", count(status.writesPerCommit)],
      ["In a second", size(status.bytesInPerSec)], ["Out a second", size(status.bytesOutPerSec)],
      ["Memory limit of clients", size(memory.limitBytes)], ["Clients cut off", count(memory.cutOff)],
    ]));
    holders.replaceChildren(memory.largest ? table("Memory by holder", ["Holder", "Memory"],
      memory.largest.length ? memory.largest.map((one) => [one.holder, size(one.bytes)]) : [["No client holds any", ""]], [1]) : "");
  });
}
