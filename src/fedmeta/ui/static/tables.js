// Tables that are sorted by a click, or Enter, on the name of a column.

function value(cell) {
  if (cell === undefined) return "";
  if (cell.dataset.value !== undefined) return cell.dataset.value === "" ? "" : Number(cell.dataset.value);
  const text = cell.innerText.trim();
  const figure = text.replace(/[\u202f\u00a0,\s]/g, "").replace("−", "-").match(/^[-+]?\d*\.?\d+/);
  return figure === null ? text.toLowerCase() : Number(figure[0]);
}

// Numbers before words, and what is empty last, whichever way.
function order(a, b, sign) {
  if (a === "" || b === "") return (a === "") - (b === "");
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (a < b ? -1 : a > b ? 1 : 0);
}

function sort(table, head, place) {
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[place]), row]);
  rows.sort(([a], [b]) => order(a, b, sign));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table:is(.runs, .nodes, .results)")) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    // On a narrow screen a row is a card, and its cells say what they are.
    for (const row of table.tBodies[0].rows) row.cells[place]?.setAttribute("data-label", head.textContent.trim());
    if (head.querySelector(".unseen") || head.textContent.trim() === "") return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head, place));
    head.append(button);
  });
}
