// Predictions on test samples that change step by step as the model adapts.

import { address, tell } from "./ask.js";
import { chart, metricText, number, percent } from "./chart.js";
import { grid, picture } from "./draw.js";

const PAUSE = 700; // milliseconds between steps when they are played

const find = (id) => document.getElementById(id);

/* about: what the server says of the model. ask(steps): a promise of {steps, model, …}. */
export class Stage {
  constructor(about, ask) {
    this.about = about;
    const figure = metricText(about.metric);
    this.text = (value) => (about.unit && value !== null ? `${figure(value)} ${about.unit}` : figure(value));
    this.timer = null;
    this.steps = [];
    find("adapt").addEventListener("click", () => this.adapt(ask));
    find("step").addEventListener("input", (event) => {
      this.stop();
      this.show(Number(event.target.value));
    });
  }

  /* drawing and indices: which samples; labels: class numbers or values, null where unknown.
     support: [[x, y]] and positions: only for functions of one number. */
  place({ drawing, indices, labels, support = [], positions = [] }) {
    Object.assign(this, { drawing, indices, labels, support, positions, steps: [] });
    this.stop();
    find("query").replaceChildren();
    find("function").hidden = true;
    this.tiles = this.about.kind === "classification" || drawing.samples.length === 0 ? this.makeTiles() : [];
    find("step").disabled = true;
    find("position").textContent = "not adapted yet";
    find("before").textContent = find("after").textContent = "–";
    find("by-step").replaceChildren();
    find("download").hidden = true;
  }

  makeTiles() {
    const place = find("query");
    grid(place, this.drawing);
    return this.indices.map((index, i) => {
      const label = this.labels[i];
      const truth = label === null ? "" : this.about.classes[label];
      const tile = document.createElement("figure");
      tile.className = "sample";
      tile.append(picture(this.drawing, index, truth ? `test sample of class ${truth}` : "test sample"));
      const caption = document.createElement("figcaption");
      const [said, sign, name, fact, sure] = ["span", "span", "span", "span", "span"].map((tag) => document.createElement(tag));
      [said.className, sign.className, fact.className, sure.className] = ["said", "sign", "truth", "sure"];
      sure.append(document.createElement("i"));
      said.append(sign, name);
      fact.textContent = truth ? `is ${truth}` : "label unknown";
      caption.append(said, fact, sure);
      tile.append(caption);
      place.append(tile);
      return { tile, sign, name, fact, bar: sure.firstChild, label };
    });
  }

  async adapt(ask) {
    this.stop();
    const button = find("adapt");
    if (button.getAttribute("aria-busy") === "true") return;
    button.setAttribute("aria-busy", "true"); // not disabled: that would throw the focus away
    button.textContent = "Adapting …";
    tell(find("message"), "");
    try {
      const answer = await ask(Number(find("count").value));
      this.steps = answer.steps;
      if (answer.positions) this.positions = answer.positions;
      find("download").href = `/api/model/${address(answer.model)}`;
      find("download").hidden = false;
      find("step").max = this.steps.length - 1;
      find("step").disabled = false;
      find("key").hidden = this.about.kind !== "classification";
      this.play(0);
      find("step").focus(); // where the result is; arrows walk through the steps
    } catch (error) {
      tell(find("message"), error.message);
    }
    button.setAttribute("aria-busy", "false");
    button.textContent = "Adapt";
  }

  play(at) {
    this.show(at);
    if (at < this.steps.length - 1) this.timer = setTimeout(() => this.play(at + 1), PAUSE);
  }

  stop() {
    clearTimeout(this.timer);
  }

  show(at) {
    const [step, start] = [this.steps[at], this.steps[0]];
    find("step").value = at;
    find("position").textContent = at === 0 ? "the meta-model as it arrives" : `after step ${at} of ${this.steps.length - 1}`;
    find("after-label").textContent = at === 1 ? "after 1 step" : `after ${at} steps`;
    find("before").textContent = this.text(start.metric);
    find("after").textContent = this.text(step.metric);
    const gain = (step.metric - start.metric) * (this.about.metric === "accuracy" ? 1 : -1);
    find("after").classList.toggle("better", gain > 0);
    find("after").classList.toggle("poorer", gain < 0);
    this.showCurve(at);
    if (this.about.kind === "regression") this.showFunction(step);
    else this.tiles.forEach((parts, i) => this.showTile(parts, step, start, i));
  }

  showTile({ tile, sign, name, fact, bar, label }, step, start, i) {
    const said = step.predicted[i];
    const known = label !== null && said !== null;
    const right = known && said === label;
    tile.classList.toggle("right", right);
    tile.classList.toggle("wrong", known && !right);
    tile.classList.toggle("changed", said !== start.predicted[i]);
    sign.textContent = known ? (right ? "✓" : "✗") : "?";
    name.textContent = said === null ? "–" : this.about.classes[said];
    bar.style.width = `${100 * (step.confidence[i] ?? 0)}%`;
    const verdict = known ? (right ? ", right" : ", wrong") : "";
    const was = said === start.predicted[i] || start.predicted[i] === null ? "" : `, was ${this.about.classes[start.predicted[i]]}`;
    fact.textContent = (label === null ? "label unknown" : `is ${this.about.classes[label]}`) + was;
    tile.firstChild.setAttribute("aria-label", `predicted ${name.textContent} with ${percent(step.confidence[i])}${verdict}`);
  }

  showCurve(at) {
    const points = this.steps.filter((step) => step.metric !== null).map((step) => [step.number, step.metric]);
    const accuracy = this.about.metric === "accuracy";
    const here = points.filter(([number_]) => number_ === at);
    const series = [
      { name: "all", colour: "var(--before)", points },
      { name: "now", colour: at === 0 ? "var(--before)" : "var(--accent)", points: here, dots: true },
    ];
    chart(find("by-step"), series, {
      width: 380, height: 130, ends: false, format: this.text, tick: accuracy ? (v) => `${Math.round(100 * v)} %` : number,
      label: `${accuracy ? "Accuracy" : "Mean squared error"} by number of steps`, axis: "steps", first: 0,
      last: this.steps.length - 1, empty: "No test sample has a label, so there is nothing to measure.",
      ...(accuracy ? { low: 0, high: 1 } : { low: 0 }),
    });
  }

  showFunction(step) {
    const place = find("function");
    place.hidden = false;
    const known = this.labels.map((label, i) => [label, step.predicted[i]]).filter(([a, b]) => a !== null && b !== null);
    if (this.positions.length === 0) {
      known.sort(([a], [b]) => a - b); // the last one's name stands right of all
      const values = known.flat();
      const ends = [Math.min(...values), Math.max(...values)];
      const series = values.length === 0 ? [] : [
        { name: "exact", colour: "var(--before)", dashed: true, points: ends.map((value) => [value, value]) },
        { name: "prediction", colour: "var(--accent)", dots: true, points: known },
      ];
      chart(place, series, { width: 640, height: 360, whole: false, label: "Prediction against label", axis: this.about.label });
      return;
    }
    const curve = this.positions.map((x, i) => [x, step.curve[i]]).filter(([, y]) => y !== null);
    const start = this.positions.map((x, i) => [x, this.steps[0].curve[i]]).filter(([, y]) => y !== null);
    const query = this.indices.map((index, i) => [this.drawing.samples[index][0], this.labels[i]]).filter(([, y]) => y !== null);
    chart(place, [
      { name: "before", colour: "var(--before)", dashed: true, points: start },
      { name: "now", colour: "var(--accent)", thick: 3, points: curve },
      { name: "test", colour: "var(--series-1)", rings: true, points: query },
      { name: "support", colour: "var(--series-2)", dots: true, points: this.support },
    ], { width: 700, height: 360, whole: false, label: "The function that the model computes, with support and test samples", axis: "input" });
  }
}
