// The open change streams, which of them is slow and why, and how long the oplog lasts for them.
import { count, duration, el, facts, get, listen, moment, size, table, trouble } from "/static/page.js";
import { followSamples, makePlot } from "/static/plot.js";

const LINES_MAX = 5;
const OPLOG_MS = 15000;

export function streams(main) {
  const list = el("div", { id: "streams" }, el("p", {}, "Waiting for the first figures …"));
  const oplog = el("div", { id: "oplog" });
  const plots = [lagPlot(), makePlot("Open streams", [["streams", "streams"]], count)];
  main.append(el("div", { class: "plots" }, plots.map((plot) => plot.element)), list, el("h3", {}, "Oplog"), oplog);
  const close = followSamples(listen, trouble, plots, (status) => {
    const rows = status.streams.map((one) => [
      one.scope, one.slow ? el("strong", { class: "bad" }, "slow") : one.waiting ? "waits for events" : "idle", duration(one.lagSecs), one.reason,
      count(one.events), one.client, one.user ?? "", el("code", {}, one.pipeline.length ? JSON.stringify(one.pipeline) : ""),
    ]);
    list.replaceChildren(rows.length
      ? table("Open change streams, the slowest first", ["Scope", "State", "Lag", "Why", "Events", "Client", "User", "Pipeline"], rows, [2, 4])
      : el("p", {}, status.streamsProblem ?? "No change stream is open."));
    if (status.streamCount > rows.length) list.append(el("p", {}, `and ${status.streamCount - rows.length} more`));
  });
  const draw = async () => {
    try {
      oplog.replaceChildren(...oplogOf(await get("/api/oplog")));
    } catch (error) {
      oplog.replaceChildren(el("p", {}, error.message));
    }
  };
  draw();
  const timer = setInterval(draw, OPLOG_MS);
  return () => { clearInterval(timer); close(); };
}

// The lag of the streams that were the slowest of the last hour; a sample names those that are behind.
function lagPlot() {
  const element = el("div");
  let names = null;
  let plot = null;
  return {
    element,
    update(points) {
      const largest = new Map();
      for (const point of points) {
        for (const [name, lag] of Object.entries(point.lags)) largest.set(name, Math.max(lag, largest.get(name) ?? 0));
      }
      const slowest = [...largest].sort((one, other) => other[1] - one[1]).slice(0, LINES_MAX).map(([name]) => name).sort();
      if (names === null || names.join() !== slowest.join()) {
        plot?.close();
        names = slowest;
        const series = slowest.length ? slowest.map((name) => [(point) => point.lags[name] ?? 0, name]) : [["lag", "all streams"]];
        plot = makePlot("Lag of the slowest streams", series, duration);
        element.replaceChildren(plot.element);
      }
      plot.update(points);
    },
    close() { plot?.close(); },
  };
}

function oplogOf(report) {
  const share = report.bytesMax ? ` of ${size(report.bytesMax)}` : "";
  return [
    facts([
      ["Window", duration(report.windowSecs) || "0 s"], ["Oldest entry", moment(report.oldest).slice(0, 19)], ["Size", `${size(report.bytes)}${share}`],
      ["Entries", count(report.entries)], ["Growth an hour", size(report.bytesPerHour)],
      ["Lasts at this rate", report.lastsSecs === null ? "without bound" : duration(report.lastsSecs)],
    ]),
    el("p", {}, "A stream that pauses for longer than the oplog lasts loses its position."),
    table(`Namespaces of the newest ${count(report.sample.entries)} entries`, ["Namespace", "Entries", "Bytes"],
      report.sample.busiest.slice(0, 10).map((one) => [one.ns, count(one.entries), size(one.bytes)]), [1, 2]),
  ];
}
