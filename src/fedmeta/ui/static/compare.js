// The curves of several runs on one axis.

import { readData } from "./ask.js";
import { chart, metricText, number } from "./chart.js";

const { metric, curves, losses } = readData();
const coloured = (series) => series.map((each, i) => ({ ...each, colour: `var(--series-${i})` }));

chart(document.getElementById("reached"), coloured(curves), {
  format: metricText(metric), tick: metric === "accuracy" ? (v) => `${Math.round(100 * v)} %` : number,
  label: "Metric of the new devices by round", first: 0, empty: "No run has evaluated its new devices while training.",
});
if (losses !== undefined) {
  chart(document.getElementById("loss"), coloured(losses), {
    log: true, label: "Loss by round", first: 0, empty: "No run has logged a loss.",
  });
}
