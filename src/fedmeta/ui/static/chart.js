// Line charts and points, drawn as SVG with the page's colours.

import { explore } from "./explore.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, text = "") {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}\u00a0%`;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(1).replaceAll("-", "−");
  const [whole, ...rest] = String(Number(value.toPrecision(3))).replace("-", "−").split(".");
  const apart = size >= 1e4 ? whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") : whole;
  return [apart, ...rest].join(".");
}

export function metricText(metric) {
  return metric === "accuracy" ? percent : number;
}

function niceTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= raw * (1 - 1e-9));
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9 * step; at += step) ticks.push(at);
  return ticks;
}

// Values that end close together get their labels moved apart, none of them below `lowest`.
function apart(places, gap, lowest) {
  const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b]);
  const moved = [...places];
  order.forEach((each, i) => {
    if (i > 0) moved[each] = Math.max(moved[each], moved[order[i - 1]] + gap);
  });
  let below = lowest + gap;
  for (const each of order.reverse()) below = moved[each] = Math.min(moved[each], below - gap);
  return moved;
}

/* series: [{name, colour, points: [[x, y]], dashed, dots, rings}]; options: {format, label, low,
   high, last, width, height, axis, ends, mark}. `ends` names the series at their right ends. */
export function chart(place, series, options) {
  const [from, to] = place.zoom ?? [-Infinity, Infinity];
  const shown = series
    .map((each) => ({ ...each, points: each.points.filter(([x]) => from <= x && x <= to) }))
    .filter((each) => each.points.length > 0);
  if (shown.length === 0) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = options.empty ?? "Nothing to draw yet.";
    place.replaceChildren(empty);
    return;
  }
  const { width = 420, height = 230, format = number, ends = true } = options;
  const room = { left: 46, right: ends ? 112 : 14, top: 10, bottom: options.axis ? 36 : 24 };
  const named = options.tick ?? format;
  const xs = shown.flatMap((each) => each.points.map((point) => point[0]));
  const ys = shown.flatMap((each) => each.points.map((point) => point[1]));
  const x0 = place.zoom ? Math.min(...xs) : options.first ?? Math.min(...xs);
  const x1 = Math.max(place.zoom ? -Infinity : options.last ?? -Infinity, ...xs);
  let [y0, y1] = [options.low ?? Math.min(...ys), options.high ?? Math.max(...ys)];
  const log = options.log && Math.min(...ys) > 0 && Math.max(...ys) > 50 * Math.min(...ys);
  const bent = log ? Math.log10 : (value) => value;
  [y0, y1] = [bent(y0), bent(y1)];
  const pad = y1 > y0 ? 0.06 * (y1 - y0) : 0.5;
  if (options.low === undefined) y0 -= pad;
  if (options.high === undefined) y1 += pad;
  const ticks = log
    ? niceTicks(y0, y1, 4).filter(Number.isInteger).map((power) => 10 ** power)
    : niceTicks(y0, y1, height < 200 ? 3 : 5);
  room.left = Math.max(room.left, 14 + 7 * Math.max(...ticks.map((tick) => named(tick).length)));
  const across = (x) => room.left + ((x - x0) / (x1 - x0 || 1)) * (width - room.left - room.right);
  const back = (place_) => x0 + ((place_ - room.left) / (width - room.left - room.right)) * (x1 - x0 || 1);
  const up = (y) => height - room.bottom - ((bent(y) - y0) / (y1 - y0 || 1)) * (height - room.top - room.bottom);

  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  for (const tick of ticks) {
    const y = up(tick);
    root.append(
      svg("line", { x1: room.left, x2: width - room.right, y1: y, y2: y, stroke: "var(--rule)" }),
      svg("text", { x: room.left - 8, y: y + 4, "text-anchor": "end" }, named(tick)),
    );
  }
  const whole = options.whole ?? true;
  for (const tick of niceTicks(x0, x1, 5).filter((each) => !whole || Number.isInteger(each))) {
    root.append(svg("text", { x: across(tick), y: height - room.bottom + 17, "text-anchor": "middle" }, number(tick)));
  }
  if (options.axis) {
    root.append(svg("text", { x: width - room.right, y: height - 3, "text-anchor": "end" }, options.axis));
  }
  if (options.mark !== undefined) {
    const x = across(options.mark);
    root.append(svg("line", { x1: x, x2: x, y1: room.top, y2: height - room.bottom, stroke: "var(--ink)", "stroke-dasharray": "2 3" }));
  }
  for (const each of shown) {
    const places = each.points.map(([x, y]) => [across(x).toFixed(1), up(y).toFixed(1)]);
    if (each.dots || each.rings) {
      for (const [cx, cy] of places) {
        root.append(svg("circle", {
          cx, cy, r: 4.5, "stroke-width": 2, stroke: each.colour, fill: each.rings ? "var(--page)" : each.colour,
        }));
      }
    }
    if (!each.dots && !each.rings && places.length > 1) {
      root.append(svg("polyline", {
        points: places.map((place) => place.join(",")).join(" "),
        fill: "none", stroke: each.colour, "stroke-width": each.thick ?? 2,
        ...(each.dashed ? { "stroke-dasharray": "5 4" } : {}),
      }));
    }
    if (places.length === 1 && !each.dots && !each.rings) {
      root.append(svg("circle", { cx: places[0][0], cy: places[0][1], r: 3.5, fill: each.colour }));
    }
  }
  if (ends) {
    const heights = shown.map((each) => up(each.points.at(-1)[1]) + 4);
    apart(heights, 14, height - room.bottom + 4).forEach((y, i) => {
      const text = svg("text", { x: across(shown[i].points.at(-1)[0]) + 8, y }, shorten(shown[i].name));
      text.style.fill = shown[i].colour;
      root.append(text);
    });
  }
  place.replaceChildren(root);
  if (!ends) return;
  const redraw = () => chart(place, series, options);
  explore({ place, root, svg, shown, across, back, top: room.top, bottom: height - room.bottom, width, format, number, redraw });
}

function shorten(text) {
  return text.length <= 16 ? text : `${text.slice(0, 6)}…${text.slice(-9)}`;
}
