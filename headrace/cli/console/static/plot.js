// A plot of numbers over time. The legend below it has the names and the newest values, as text.
import { el } from "/static/page.js";

const HOUR = 3600;
const scheme = matchMedia("(prefers-color-scheme: dark)");
const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const valueOf = (point, name) => (typeof name === "function" ? name(point) : point[name]) ?? null;

// `series`: [field of a point, or function of one, name]; `format`: a number as text.
export function makePlot(title, series, format) {
  const box = el("div", { class: "plot", role: "img", "aria-label": `Plot of the last hour: ${title}` });
  const legend = el("ul", { class: "legend", "aria-label": `${title}, now` });
  const element = el("figure", {}, el("figcaption", {}, title), box, legend);
  let data = [[], ...series.map(() => [])];
  let chart = null;

  const lines = () => [{}, ...series.map((_, index) => ({ stroke: colour(`--line-${index + 1}`), width: 1.5, spanGaps: false, points: { show: false } }))];
  function make() {
    chart?.destroy();
    const axis = { stroke: colour("--text-weak"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    chart = new uPlot({
      width: Math.max(box.clientWidth, 200), height: 140, legend: { show: false }, cursor: { show: false }, series: lines(),
      scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), (high ?? 0) > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(format) }],
    }, data, box);
  }
  const resized = new ResizeObserver(() => chart?.setSize({ width: Math.max(box.clientWidth, 200), height: 140 }));
  resized.observe(box);
  scheme.addEventListener("change", make);

  return {
    element,
    update(points) {
      const newest = points.at(-1);
      const kept = newest ? points.filter((point) => point.at > newest.at - HOUR) : [];
      data = [kept.map((point) => point.at), ...series.map(([name]) => kept.map((point) => valueOf(point, name)))];
      if (chart === null) make(); else chart.setData(data);
      // A server that does not report a number has no line, and no entry in the legend.
      legend.replaceChildren(...series.flatMap(([name, shown], index) => data[index + 1].every((value) => value === null) ? [] : [
        el("li", { class: `line-${index + 1}` }, `${shown} `, el("b", {}, valueOf(newest, name) === null ? "–" : format(valueOf(newest, name))))]));
    },
    close() {
      resized.disconnect();
      scheme.removeEventListener("change", make);
      chart?.destroy();
    },
  };
}

// Follow the server's figures: plots get the points of the last hour, `show` the newest status.
export function followSamples(listen, trouble, plots, show) {
  let points = [];
  const draw = () => plots.forEach((plot) => plot.update(points));
  const stream = listen(() => "/api/live", {
    history: (history) => {
      trouble(history.error ?? "");
      points = history.points;
      draw();
      if (history.status) show(history.status);
    },
    sample: ({ status, point }) => {
      trouble("");
      if (points.at(-1)?.at !== point.at) points.push(point);
      if (points.length > 1800) points.shift();
      draw();
      show(status);
    },
    trouble: ({ error }) => trouble(error),
    lost: () => trouble("The console does not answer; trying again."),
  });
  return () => { stream.close(); plots.forEach((plot) => plot.close()); };
}
