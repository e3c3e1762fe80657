// Values under the pointer, and a closer look: drag over a stretch, double-click or Escape to go back.
// By keyboard: arrows move, + looks closer, − and Escape go back.

const LEAST = 8; // pixels of a drag that is meant

/* chart: {place, root, svg, shown, across, back, top, bottom, width, format, number, redraw}; `across`
   and `back` lead from values to places in the picture and back. */
export function explore(chart) {
  const { place, root, svg, shown } = chart;
  const xs = [...new Set(shown.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  const line = svg("line", { y1: chart.top, y2: chart.bottom, stroke: "var(--ink)", "stroke-dasharray": "2 3", visibility: "hidden" });
  const shade = svg("rect", { y: chart.top, height: chart.bottom - chart.top, fill: "var(--accent)", opacity: 0.12, visibility: "hidden" });
  root.append(shade, line);
  root.tabIndex = 0;
  const tip = document.createElement("p");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.textContent = place.zoom ? "A closer look; Escape or a double click goes back." : "";
  place.append(tip);
  let [at, from] = [-1, null];

  const viewX = (event) => {
    const box = root.getBoundingClientRect();
    return ((event.clientX - box.left) * chart.width) / box.width;
  };
  const nearest = (x) => xs.reduce((best, each, i) => (Math.abs(each - x) < Math.abs(xs[best] - x) ? i : best), 0);

  function show(index) {
    at = Math.max(0, Math.min(xs.length - 1, index));
    const x = xs[at];
    line.setAttribute("x1", chart.across(x));
    line.setAttribute("x2", chart.across(x));
    line.setAttribute("visibility", "visible");
    tip.replaceChildren(document.createTextNode(`${chart.number(x)}: `));
    for (const each of shown) {
      const point = each.points.find((one) => one[0] === x);
      if (point === undefined) continue;
      const part = document.createElement("span");
      part.style.color = each.colour;
      part.textContent = `${each.title ?? each.name} ${chart.format(point[1])} `;
      tip.append(part);
    }
  }

  function zoom(range) {
    place.zoom = range;
    chart.redraw();
    place.querySelector("svg")?.focus({ preventScroll: true });
  }

  root.addEventListener("pointermove", (event) => {
    const x = viewX(event);
    show(nearest(chart.back(x)));
    if (from === null) return;
    shade.setAttribute("x", Math.min(from, x));
    shade.setAttribute("width", Math.abs(x - from));
    shade.setAttribute("visibility", "visible");
  });
  root.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    shade.setAttribute("visibility", "hidden");
    from = null;
  });
  root.addEventListener("pointerdown", (event) => { from = viewX(event); });
  root.addEventListener("pointerup", (event) => {
    const [a, b] = [from, viewX(event)];
    from = null;
    shade.setAttribute("visibility", "hidden");
    if (a !== null && Math.abs(a - b) > LEAST) zoom([chart.back(Math.min(a, b)), chart.back(Math.max(a, b))]);
  });
  root.addEventListener("dblclick", () => zoom(undefined));
  root.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 };
    if (event.key in moves) show(moves[event.key]);
    else if (event.key === "+" && xs.length > 2) {
      const [centre, reach] = [xs[Math.max(at, 0)], (xs.at(-1) - xs[0]) / 4];
      zoom([Math.max(xs[0], centre - reach), Math.min(xs.at(-1), centre + reach)]);
    } else if (["-", "Escape"].includes(event.key)) zoom(undefined);
    else return;
    event.preventDefault();
  });
}
