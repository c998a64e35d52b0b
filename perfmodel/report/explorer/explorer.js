// The what-if explorer: sliders over simulated points, and interpolation between them.
// Texts of the scenario come in through textContent only, so that none of them can become markup.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const { axes, columns, bottlenecks } = data;
  const byId = (name) => document.getElementById(`explorer-${name}`);
  const sliders = axes.map((axis) => byId(axis.key));
  const last = axes.length - 1; // the axis of GPUs
  const first = axes.findIndex((axis) => axis.key === "bandwidth");
  let moved = first >= 0 ? first : Math.max(0, axes.findIndex((axis) => axis.stops.length > 1));

  // ---- numbers -------------------------------------------------------------------------------

  const numbers = new Map(data.points.map((point, number) => [point.join(), number]));
  const baseline = axes.map((axis) => axis.stops[axis.asked].at);
  const isPart = (part, whole) => part.every((one) => whole.includes(one));
  const isSimulated = (part) => data.groups.some((group) => isPart(part, group));

  /** Points around a place, and their weights. */
  function corners(place) {
    let around = [[[], 1]];
    for (const at of place) {
      const low = Math.floor(at), share = at - low;
      around = around.flatMap(([point, weight]) => share === 0 ? [[[...point, low], weight]]
        : [[[...point, low], weight * (1 - share)], [[...point, low + 1], weight * share]]);
    }
    return around;
  }

  /** Simulated parts of a combination of points, and how often each counts (see design.py). */
  function parts(point) {
    const number = numbers.get(point.join());
    if (number !== undefined) return [[number, 1]];
    const moved = point.map((_, at) => at).filter((at) => point[at] !== baseline[at]);
    const subsets = moved.reduce((all, at) => [...all, ...all.map((part) => [...part, at])], [[]]);
    const simulated = subsets.filter(isSimulated);
    return simulated.map((part) => [
      numbers.get(baseline.map((own, at) => (part.includes(at) ? point[at] : own)).join()),
      simulated.filter((other) => isPart(part, other))
        .reduce((sum, other) => sum + (-1) ** (other.length - part.length), 0),
    ]);
  }

  /** Numbers and weights of the simulated points that a place is estimated from; one on a point. */
  function weights(place) {
    const all = new Map();
    for (const [point, share] of corners(place)) {
      for (const [number, count] of parts(point)) all.set(number, (all.get(number) ?? 0) + share * count);
    }
    return [...all].filter(([, weight]) => weight !== 0);
  }

  const sum = (around, value) => around.reduce((all, [index, weight]) => all + weight * value(index), 0);
  /** Geometric mean over points. */
  const power = (around, value) => Math.exp(sum(around, (index) => Math.log(value(index))));

  /** Communication that is not hidden. */
  function exposedOf(around) {
    const { comm_s: comm, exposed_comm_s: exposed } = columns;
    const known = around.every(([index]) => comm[index] > 0);
    const all = known ? power(around, (index) => comm[index]) : Math.max(0, sum(around, (index) => comm[index]));
    const least = Math.min(0, ...around.map(([index]) => comm[index] - exposed[index]));
    return all - Math.min(all, Math.max(least, sum(around, (index) => comm[index] - exposed[index])));
  }

  /** A column at a place, as value_at of grid.py; null where a point around it has none. */
  function valueAt(around, column) {
    const values = columns[column], { step_time_s: steps, exposed_comm_s: exposed } = columns;
    if (around.some(([index]) => values[index] === null)) return null;
    if (around.length === 1) return values[around[0][0]];
    if (column === "samples" || column === "memory_bytes") return power(around, (index) => values[index]);
    const waits = exposedOf(around);
    if (column === "exposed_comm_s") return waits;
    const others = (index) => steps[index] - exposed[index];
    const step = waits + Math.max(sum(around, others), Math.min(...around.map(([index]) => others(index))));
    if (column === "step_time_s") return step;
    const ratio = power(around, (index) => values[index] / steps[index]);
    return step * (column === "low_s" ? Math.min(1, ratio) : Math.max(1, ratio));
  }

  /** Everything that is shown of the setting of the sliders (stops, one index per axis). */
  function stateAt(stops) {
    const place = stops.map((stop, number) => axes[number].stops[stop].at);
    const size = axes[last].stops[stops[last]];
    const around = weights(place), alone = weights([...place.slice(0, last), 0]);
    const step = valueAt(around, "step_time_s");
    const base = valueAt(alone, "step_time_s");
    const speed = step === null ? null : valueAt(around, "samples") / step;
    const each = base === null ? null : valueAt(alone, "samples") / base / axes[last].stops[0].gpus;
    const exact = around.length === 1;
    const memory = valueAt(around, "memory_bytes"), between = place.some((at) => !Number.isInteger(at));
    const apart = ([index]) => data.points[index].filter((at, number) => at !== baseline[number]).length;
    const most = Math.max(...around.map(apart)); // sliders moved in the nearest simulated settings
    const near = around.filter((one) => one[1] > 0 && (between || apart(one) === most));
    return {
      exact,
      between,
      moved: place.filter((at, number) => at !== baseline[number]).length,
      step,
      low: valueAt(around, "low_s"),
      high: valueAt(around, "high_s"),
      exposed: valueAt(around, "exposed_comm_s"),
      speed,
      share: speed === null || each === null ? null : speed / size.gpus / each,
      fits: exact ? columns.fits[around[0][0]] !== false : memory < data.room,
      limits: [...new Set(near.map(([index]) => columns.bottleneck[index]))].filter((at) => at !== null),
    };
  }

  // ---- words ---------------------------------------------------------------------------------

  /** Three significant digits, thousands separated, as everywhere on this page. */
  function digits(value) {
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(3));
    const places = Math.max(0, Math.min(3, 2 - Math.floor(Math.log10(Math.abs(rounded)))));
    return rounded.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  }

  function duration(time) {
    if (time === 0) return "0\u00a0s";
    const units = [["s", 1], ["ms", 1e-3], ["\u00b5s", 1e-6], ["ns", 1e-9]];
    const [name, scale] = units.find(([, one]) => Math.abs(time) >= one * 0.9995) ?? units[3];
    return `${digits(time / scale)}\u00a0${name}`;
  }

  /** A round time without needless decimals: "150 ms". */
  function short(time) {
    const [number, unit] = duration(time).split("\u00a0");
    return `${Number(number.replaceAll(",", "")).toLocaleString("en-US")}\u00a0${unit}`;
  }

  /** The next of 1, 2, 5, 10 ... times a power of ten. */
  function roundStep(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * [1, 2, 5, 10].find((one) => one * power >= least * 0.999);
  }

  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;

  function change(now, then) {
    if (now === null || then === null || then === 0) return "";
    const off = 100 * (now / then - 1);
    if (Math.abs(off) < 0.05) return "as asked";
    return `${off < 0 ? "\u2212" : "+"}${digits(Math.abs(off))}\u00a0% from what was asked`;
  }

  /** A figure; of a setting that does not fit nothing is said to be better. */
  function say(name, text, below, fits = true) {
    byId(name).closest(".tile").classList.toggle("bad", !fits);
    byId(name).textContent = text;
    byId(`${name}-change`).textContent = below;
  }

  function mark(state) {
    if (state.step === null) return `Not known: a point here could not be simulated. ${data.failed}`;
    if (state.exact) return "Simulated: exactly these settings.";
    const off = data.errors[state.moved > data.few ? 1 : 0];
    if (state.between) return `Interpolated between simulated points. ${off}`;
    return `Estimated: these settings were simulated in smaller groups, not all together. ${off}`;
  }

  // ---- the picture along the slider that was moved last ----------------------------------------

  const svg = byId("chart");
  function draw(tag, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  }

  /** Stops between which the slider can stand, so that a line may join them. */
  function joined(along) {
    const runs = [];
    along.forEach((one, at) => {
      const before = along[at - 1];
      const near = before && Math.abs(one.at - before.at) < 1;
      if (near) runs.at(-1).push(one);
      else runs.push([one]);
    });
    return runs.filter((run) => run.length > 1);
  }

  function chart(wide = svg.parentElement.clientWidth) {
    const stops = sliders.map((slider) => Number(slider.value));
    const width = Math.max(280, Math.min(wide || 640, 1064)), height = 230;
    const left = 64, right = 22, top = 14, bottom = 34;
    const axis = axes[moved];
    const along = axis.stops.map((stop, at) => ({
      ...stop, ...stateAt(stops.map((other, number) => (number === moved ? at : other))),
    })).filter((one) => one.step !== null);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    byId("chart-title").textContent = `Step time along: ${axis.name}`;
    if (!along.length) return;
    const most = 1.05 * Math.max(...along.map((one) => one.high ?? one.step), data.asked.step);
    const span = Math.max(1, axis.points - 1);
    const x = (at) => left + 12 + ((width - left - right - 12) * at) / span;
    const y = (time) => height - bottom - ((height - top - bottom) * time) / most;
    const step = roundStep(most / 4);
    for (let at = 0; at * step <= most; at += 1) {
      const level = y(at * step);
      draw("line", { class: "grid", x1: left, x2: width - right, y1: level, y2: level });
      draw("text", { x: left - 8, y: level + 4, "text-anchor": "end" }, at ? short(at * step) : "0");
    }
    const points = axis.stops.filter((stop) => Number.isInteger(stop.at));
    const every = Math.ceil((points.length * 84) / (width - left - right));
    points.forEach((stop, at) => {
      if (at % every) return;
      const anchor = at === 0 ? "start" : at === points.length - 1 ? "end" : "middle";
      draw("text", { x: x(stop.at) - (at ? 0 : 12), y: height - 12, "text-anchor": anchor }, stop.short);
    });
    const runs = joined(along), banded = new Set(runs.flat());
    for (const run of runs) {
      const known = run.filter((one) => one.low !== null && one.high !== null);
      const edge = [...known.map((one) => [one.at, one.high]), ...known.reverse().map((one) => [one.at, one.low])];
      draw("polygon", { class: "band", points: edge.map(([at, time]) => `${x(at)},${y(time)}`).join(" ") });
      draw("polyline", { class: "curve", points: run.map((one) => `${x(one.at)},${y(one.step)}`).join(" ") });
    }
    for (const one of along.filter((each) => Number.isInteger(each.at))) {
      if (!banded.has(one) && one.low !== null && one.high !== null) draw("line", { class: "span", x1: x(one.at), x2: x(one.at), y1: y(one.low), y2: y(one.high) });
      if (one.fits) draw("circle", { class: one.exact ? "point" : "point between", cx: x(one.at), cy: y(one.step), r: 4 });
      else draw("path", { class: "unfit", d: `M${x(one.at) - 5},${y(one.step) - 5}l10,10m0,-10l-10,10` });
    }
    const here = along.find((one) => one.at === axis.stops[stops[moved]].at);
    if (here) draw("circle", { class: "here", cx: x(here.at), cy: y(here.step), r: 8 });
    svg.setAttribute("aria-label", `${axis.name}: ${along.filter((one) => one.exact)
      .map((one) => `${one.label} ${duration(one.step)}${one.fits ? "" : " (does not fit)"}`).join("; ")}`);
  }

  // ---- sliders -----------------------------------------------------------------------------------

  function show() {
    const stops = sliders.map((slider) => Number(slider.value));
    const state = stateAt(stops), asked = data.asked;
    const about = state.exact ? "" : "\u2248\u00a0";
    const text = (value, write) => (value === null ? "unknown" : about + write(value));
    sliders.forEach((slider, number) => {
      const stop = axes[number].stops[stops[number]];
      byId(`${axes[number].key}-value`).textContent = stop.label;
      const kind = Number.isInteger(stop.at) ? "simulated" : "between simulated points";
      slider.setAttribute("aria-valuetext", `${stop.label}, ${kind}`);
    });
    const { fits } = state, known = (words) => (fits ? words : "if it did fit");
    say("step", text(state.step, duration), known(change(state.step, asked.step)), fits);
    const interval = state.low === null || state.high === null
      ? "no interval known" : `80\u00a0% interval ${duration(state.low)} to ${duration(state.high)}`;
    byId("interval").textContent = state.step === null ? "" : interval;
    say("speed", text(state.speed, digits), known(change(state.speed, asked.speed)), fits);
    say("share", text(state.share, percent), known(state.share === asked.share
      ? "as asked" : asked.share === null ? "" : `as asked ${percent(asked.share)}`), fits);
    say("exposed", text(state.exposed, duration), state.exposed === asked.exposed
      ? "as asked" : `as asked ${duration(asked.exposed)}`);
    say("limit", state.limits.map((at) => bottlenecks[at]).join(", or ") || "unknown",
      fits ? "" : "does not fit in GPU memory", fits);
    const said = byId("mark");
    said.textContent = mark(state);
    said.className = state.exact ? "exact" : "between";
    chart();
  }

  /** Page Up and Page Down go to the next simulated point. */
  function jump(event, number) {
    const up = event.key === "PageUp";
    if (!up && event.key !== "PageDown") return;
    event.preventDefault();
    const here = Number(sliders[number].value);
    const points = axes[number].stops.map((stop, at) => (Number.isInteger(stop.at) ? at : -1)).filter((at) => at >= 0);
    const next = up ? points.find((at) => at > here) : points.findLast((at) => at < here);
    if (next === undefined) return;
    sliders[number].value = next;
    moved = number;
    show();
  }

  sliders.forEach((slider, number) => {
    slider.addEventListener("input", () => {
      moved = number;
      show();
    });
    slider.addEventListener("keydown", (event) => jump(event, number));
  });
  byId("reset").addEventListener("click", () => {
    sliders.forEach((slider, number) => { slider.value = axes[number].asked; });
    show();
  });
  addEventListener("resize", () => chart());
  addEventListener("beforeprint", () => chart(690)); // the width of paper, as in page.js
  addEventListener("afterprint", () => chart());
  data.asked = stateAt(axes.map((axis) => axis.asked));
  show();
})();
