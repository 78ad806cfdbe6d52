// The pipeline's jobs whose files the command line names: state, lag, rows, errors, dead letters, tables.
import { count, duration, el, facts, get, size, table, trouble } from "/static/page.js";

const EVERY_MS = 6000;

export function jobs(main) {
  const result = el("div", { id: "jobs" }, el("p", {}, "Asking …"));
  main.append(result);
  const draw = async () => {
    try {
      const { jobs: found } = await get("/api/jobs");
      result.replaceChildren(...(found.length ? found.map(job) : [el("p", {}, "No job is named: start the console with ", el("code", {}, "--job FILE"), ".")]));
    } catch (error) {
      trouble(error.message);
    }
  };
  draw();
  const timer = setInterval(draw, EVERY_MS);
  return () => clearInterval(timer);
}

function job(status) {
  if (status.error) return el("section", {}, el("h3", {}, status.file), el("p", { class: "bad" }, status.error));
  const run = status.lastRun ?? {};
  return el("section", {},
    el("h3", {}, status.job),
    status.failure ? el("p", { class: "bad" }, status.failure) : "",
    status.lagProblem ? el("p", { class: "bad" }, status.lagProblem) : "",
    facts([
      ["State", `${status.running ? "runs" : "does not run"}, ${status.status}`],
      ["Lag", status.lag ? `${count(status.lag.events)} events, ${duration(status.lag.seconds)}` : "not known"],
      ["Batch", `${count(status.batch.committed)} committed, ${count(status.batch.planned)} planned`],
      ["Last run", run.phase ?? "none yet"],
      ["Rows", count(run.rowsTotal)], ["Rows a second", count(run.rowsPerSecond)], ["Last batch took", duration(run.batchSeconds)],
      ["Dead letters", count(run.deadLettersTotal)], ["Values in _rest", count(run.restValuesTotal)],
      ["Snapshot documents", count(run.snapshotDocuments)],
      ["Position", status.positions.map((position) => `${position.time}${position.inSnapshot ? ", in its snapshot" : ""}`).join("; ") || "–"],
    ]),
    table(`Tables of ${status.job}`, ["Sink", "Batch", "Rows", "Files", "Size", "Problem"],
      status.sinks.map((sink) => [sink.sink, count(sink.batch), count(sink.table?.rowCount), count(sink.table?.fileCount), size(sink.table?.byteCount), sink.error]), [1, 2, 3, 4]),
    collections(status));
}

function collections(status) {
  const rows = Object.entries(status.collections).map(([name, one]) => [
    name, one.state, count(one.lag?.events), duration(one.lag?.seconds), count(one.lastRun?.rowsTotal), count(one.lastRun?.deadLettersTotal)]);
  return rows.length ? table(`Collections of ${status.job}`, ["Collection", "State", "Lag, events", "Lag", "Rows", "Dead letters"], rows, [2, 3, 4, 5]) : "";
}
