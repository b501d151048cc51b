// What the pages need beyond htmx: the stream of changes, ages that grow, the colour switch, charts.
"use strict";

const root = document.documentElement;

/* Colours: the system's, unless the reader has chosen others. */
const chosen = localStorage.getItem("theme");
if (chosen) root.dataset.theme = chosen;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  drawCharts(true);
}

/* One stream for the page; while it is hidden nothing is fetched. */
function listen() {
  const state = document.getElementById("stream");
  const source = new EventSource("/dashboard/events");
  let missed = false;
  const tell = () => document.body.dispatchEvent(new Event("changed"));
  source.addEventListener("changed", () => {
    if (document.hidden) missed = true;
    else tell();
  });
  source.onopen = () => { state.hidden = true; };
  source.onerror = () => { state.hidden = false; };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && missed) { missed = false; tell(); }
  });
}

/* Ages and countdowns are made of times, so that they go on between two fetches. */
function spanText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

function tick() {
  const offset = Number(root.dataset.offset);
  const now = Date.now() / 1000 - offset;
  for (const one of document.querySelectorAll("[data-since]")) one.textContent = spanText(now - Number(one.dataset.since));
  for (const one of document.querySelectorAll("[data-until]")) one.textContent = spanText(Number(one.dataset.until) - now);
}

/* Charts: <div class="chart" data-chart='{"x": …, "series": [{"label", "values", "look"}]}'>. */
const drawn = new Map();

function colour(name) {
  return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
}

function drawCharts(anew = false) {
  for (const [place, { chart }] of drawn) {
    if (!place.isConnected || anew) { chart.destroy(); drawn.delete(place); }
  }
  for (const place of document.querySelectorAll(".chart[data-chart]")) {
    const had = drawn.get(place);
    if (had && had.text === place.dataset.chart) continue;
    had?.chart.destroy();
    drawn.set(place, { chart: drawChart(place), text: place.dataset.chart });
  }
}

function drawChart(place) {
  const { title, x, series, bounds } = JSON.parse(place.dataset.chart);
  const [least, most] = bounds ?? [-Infinity, Infinity];
  const ink = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  const looks = ["blue", "red", "green", "amber"];
  return new uPlot({
    width: Math.max(240, place.clientWidth),
    height: 240,
    scales: { x: { time: false }, y: { range: (_, low, high) => {
      const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
      return [Math.max(low - room, least), Math.min(high + room, most)];
    } } },
    axes: [
      { ...ink, label: title, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000] },
      {
        ...ink,
        values: (_, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(6)))),
        size: (_, labels) => 20 + 7 * Math.max(...(labels ?? [""]).map((label) => label.length)),
      },
    ],
    series: [{ label: title }, ...series.map(({ label }, index) => ({
      label, stroke: colour(looks[index % looks.length]), width: 2, points: { size: 6 }, spanGaps: true,
      dash: index % 2 ? [6, 4] : [],
    }))],
  }, [x, ...series.map(({ values }) => values)], place);
}

document.addEventListener("DOMContentLoaded", () => {
  root.dataset.offset = String(Date.now() / 1000 - Number(document.body.dataset.now));
  document.getElementById("theme")?.addEventListener("click", toggleTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));
  addEventListener("resize", () => { for (const [place, { chart }] of drawn) chart.setSize({ width: Math.max(240, place.clientWidth), height: 240 }); });
  const field = document.getElementById("token");
  if (field && location.hash.length > 1) {
    // The token came behind a #, which no server sees; it leaves the address at once.
    field.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname);
    field.form.submit();
    return;
  }
  if (document.getElementById("stream")) listen();
  tick();
  setInterval(tick, 1000);
  drawCharts();
});
document.addEventListener("htmx:after:swap", () => { tick(); drawCharts(); });
