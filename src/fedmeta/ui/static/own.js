// The user's own samples: bring, label, adapt.

import { address, ask, post, readData, tell } from "./ask.js";
import { grid, picture } from "./draw.js";
import { Stage } from "./stage.js";

const { name, stage: about, limit } = readData();
const classes = about.kind === "classification";
const find = (id) => document.getElementById(id);
const state = { set: null, drawing: { kind: "vector", features: [], samples: [] }, names: [], labels: [], uses: [] };

const stage = new Stage(about, (steps) => {
  setStage();
  return post(`/api/adapt-own/${address(name)}`, { set: state.set, labels: state.labels, uses: state.uses, steps });
});

function known(label) {
  return label !== null && label !== "";
}

function setStage() {
  const indices = state.uses.map((_, i) => i).filter((i) => state.uses[i] === "test");
  const value = (label) => (!known(label) ? null : classes ? about.classes.indexOf(label) : Number(label));
  const single = about.shape.length === 1 && about.shape[0] === 1;
  stage.place({
    drawing: state.drawing,
    indices,
    labels: indices.map((i) => value(state.labels[i])),
    support: !classes && single
      ? state.uses.map((use, i) => [use, i]).filter(([use, i]) => use === "adapt" && known(state.labels[i])).map(([, i]) => [state.drawing.samples[i][0], value(state.labels[i])])
      : [],
  });
  const ready = state.uses.some((use, i) => use === "adapt" && known(state.labels[i]));
  find("adapt").disabled = !ready;
}

async function bring(files) {
  tell(find("trouble"), "");
  for (const file of files) {
    try {
      if (file.size > limit) throw new Error(`${file.name} has more than ${Math.floor(limit / 2 ** 20)} MB: use a smaller one, or fedmeta adapt.`);
      const query = new URLSearchParams({ name: file.name, invert: find("invert")?.checked ? "yes" : "no" });
      if (state.set !== null) query.set("set", state.set);
      const answer = await ask(`/api/bring/${address(name)}?${query}`, { method: "POST", body: file });
      take(answer);
    } catch (error) {
      tell(find("trouble"), error.message);
      break;
    }
  }
}

// Labels that were given on the page stay when more files come.
function take({ set, drawing, names, labels, uses, notes }) {
  const before = state.names.length;
  Object.assign(state, { set, drawing, names });
  state.labels.push(...labels.slice(before));
  state.uses.push(...uses.slice(before));
  find("notes").textContent = [`${names.length} sample${names.length === 1 ? "" : "s"}`, ...notes].join("; ");
  render();
  setStage();
}

function render() {
  grid(find("own"), state.drawing);
  find("own").replaceChildren(...state.names.map((each, i) => {
    const figure = document.createElement("figure");
    figure.className = "sample";
    const caption = document.createElement("figcaption");
    const title = document.createElement("span");
    title.className = "name";
    title.textContent = each;
    caption.append(title, labelField(i, each), useField(i, each));
    figure.append(picture(state.drawing, i, each), caption);
    return figure;
  }));
}

function labelField(i, each) {
  const field = document.createElement(classes ? "select" : "input");
  if (classes) {
    field.append(new Option("no label", ""), ...about.classes.map((text) => new Option(text, text)));
  } else {
    field.type = "number";
    field.step = "any";
    field.placeholder = "value";
  }
  field.value = state.labels[i] ?? "";
  field.setAttribute("aria-label", `Label of ${each}`);
  field.addEventListener("change", () => {
    state.labels[i] = field.value;
    setStage();
  });
  return field;
}

function useField(i, each) {
  const field = document.createElement("select");
  field.append(new Option("adapt", "adapt"), new Option("test", "test"));
  field.value = state.uses[i];
  field.setAttribute("aria-label", `Use of ${each}`);
  field.addEventListener("change", () => {
    state.uses[i] = field.value;
    setStage();
  });
  return field;
}

const drop = find("drop");
find("files").addEventListener("change", (event) => bring([...event.target.files]).then(() => { event.target.value = ""; }));
for (const kind of ["dragenter", "dragover"]) {
  drop.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
drop.addEventListener("dragleave", () => drop.classList.remove("over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  bring([...event.dataTransfer.files]);
});
setStage();
