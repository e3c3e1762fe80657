// One sample as a picture: an image enlarged crisply, a signal as lines, a row as named numbers.

import { number, svg } from "./chart.js";

const MOST_NUMBERS = 8;

export function picture(drawing, index, label) {
  const sample = drawing.samples[index];
  if (drawing.kind === "image") return image(drawing, sample, label);
  if (drawing.kind === "signal") return signal(drawing, sample, label);
  return numbers(drawing, sample, label);
}

function image({ width, height, channels }, sample, label) {
  const bytes = Uint8Array.from(atob(sample), (letter) => letter.charCodeAt(0));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  canvas.style.aspectRatio = `${width} / ${height}`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) pixels.data[4 * i + c] = bytes[channels * i + (channels === 3 ? c : 0)];
    pixels.data[4 * i + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function signal({ low, high }, lines, label) {
  const root = svg("svg", { viewBox: "0 0 100 50", class: "signal", role: "img", "aria-label": label });
  lines.forEach((line, i) => {
    const points = line.map((value, t) => {
      const x = (100 * t) / Math.max(line.length - 1, 1);
      return `${x.toFixed(1)},${(47 - (44 * (value - low)) / (high - low || 1)).toFixed(1)}`;
    });
    root.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: `var(--series-${i % 8})`, "stroke-width": 0.9 }));
  });
  return root;
}

function numbers({ features }, sample, label) {
  const table = document.createElement("table");
  table.setAttribute("aria-label", label);
  sample.slice(0, MOST_NUMBERS).forEach((value, i) => {
    const row = table.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = features[i] ?? "";
    row.append(head);
    const cell = row.insertCell();
    cell.className = "n";
    cell.textContent = number(value);
  });
  if (sample.length > MOST_NUMBERS) table.insertRow().insertCell().textContent = `and ${sample.length - MOST_NUMBERS} more`;
  return table;
}

export function grid(place, drawing) {
  place.classList.toggle("rows", drawing.kind === "vector");
  place.classList.toggle("signals", drawing.kind === "signal");
}
