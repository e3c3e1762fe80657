// The curves of a run, which grow while it goes on.

import { address, ask } from "./ask.js";
import { chart, metricText, number } from "./chart.js";

const PAUSE = 1000; // milliseconds between looks

const place = document.getElementById("curves");
const { name, metric } = place.dataset;
const [usual, planned] = [Number(place.dataset.steps), Number(place.dataset.planned)];
const live = document.getElementById("live");
let [records, offset] = [[], 0];

function draw() {
  const last = live ? planned : records.at(-1)?.round;
  const losses = records.map((record) => [record.round, record.meta_loss ?? record.local_loss]);
  chart(document.getElementById("loss"), [
    { name: number(losses.at(-1)?.[1]), title: "loss", colour: "var(--accent)", points: losses.filter(([, y]) => Number.isFinite(y)) },
  ], { log: true, label: "Loss by round", last, first: 0, empty: "No round has been logged yet." });

  const steps = [...new Set(records.flatMap((record) => Object.keys(record.target ?? {})))].sort((a, b) => a - b);
  let other = 2;
  const series = steps.map((count) => ({
    name: count === "1" ? "1 step" : `${count} steps`,
    colour: Number(count) === usual ? "var(--accent)" : count === "0" ? "var(--before)" : `var(--series-${other++})`,
    dashed: count === "0",
    thick: Number(count) === usual ? 2.6 : 1.6,
    points: records.filter((record) => Number.isFinite(record.target?.[count])).map((record) => [record.round, record.target[count]]),
  }));
  chart(document.getElementById("reached"), series, {
    format: metricText(metric), tick: metric === "accuracy" ? (v) => `${Math.round(100 * v)} %` : number,
    label: "Metric of the new devices by round", last, first: 0,
    empty: "The new devices have not been evaluated yet.",
  });
}

// The rate of the last rounds, and what is left at that rate.
function pace(done) {
  const times = records.slice(-20).map((record) => record.seconds).filter(Number.isFinite);
  const each = times.reduce((sum, time) => sum + time, 0) / times.length;
  if (!(each > 0) || done >= planned) return "";
  const left = each * (planned - done);
  const words = left < 120 ? `${Math.ceil(left)} s` : left < 7200 ? `${Math.round(left / 60)} min` : `${(left / 3600).toFixed(1)} h`;
  const rate = each < 1 ? `${number(1 / each)} rounds/s` : `${number(each)} s/round`;
  return `About ${words} left at ${rate}.`;
}

async function look() {
  try {
    const news = await ask(`/api/rounds/${address(name)}?offset=${offset}`);
    const repeated = news.records.length > 0 && records.length > 0 && news.records[0].round <= records.at(-1).round;
    if (news.restarted || repeated) records = [];
    if (repeated && !news.restarted) {
      offset = 0;
    } else {
      records.push(...news.records);
      offset = news.offset;
    }
    if (news.records.length > 0 || offset === 0) draw();
    if (live) {
      const done = records.at(-1)?.round ?? 0;
      live.textContent = `round ${done} of ${planned}`;
      document.getElementById("rate").textContent = pace(done);
      if (news.ended) {
        location.reload(); // the server has more to say now
        return;
      }
    }
  } catch (error) {
    if (live) live.textContent = error.message;
    else document.getElementById("loss").textContent = error.message;
  }
  if (live) setTimeout(look, PAUSE);
}

look();
