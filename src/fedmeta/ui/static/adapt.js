// A target of the run: its support samples, and the stage.

import { address, post, readData } from "./ask.js";
import { number } from "./chart.js";
import { grid, picture } from "./draw.js";
import { Stage } from "./stage.js";

const { name, stage } = readData();
const classes = stage.kind === "classification";
const labelText = (label) => (classes ? stage.classes[label] : number(label));

const support = document.getElementById("support");
grid(support, stage.drawing);
for (let i = 0; i < stage.support_shown; i += 1) {
  const figure = document.createElement("figure");
  figure.className = "sample";
  const caption = document.createElement("figcaption");
  caption.textContent = labelText(stage.labels[i]);
  figure.append(picture(stage.drawing, i, `support sample, label ${caption.textContent}`), caption);
  support.append(figure);
}

const indices = stage.labels.map((_, i) => i).slice(stage.support_shown);
new Stage(stage, (steps) => post(`/api/adapt/${address(name)}`, { node: stage.node, steps })).place({
  drawing: stage.drawing,
  indices,
  labels: indices.map((i) => stage.labels[i]),
  support: stage.positions.length === 0 ? [] : stage.labels.slice(0, stage.support_shown).map((y, i) => [stage.drawing.samples[i][0], y]),
  positions: stage.positions,
});

document.getElementById("node").addEventListener("change", () => document.getElementById("pick").submit());
