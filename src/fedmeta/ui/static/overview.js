// Find runs in the list, and choose some to compare.

const MOST = 8;
const [find, found] = [document.getElementById("find"), document.getElementById("found")];
const [button, chosen] = [document.getElementById("compare"), document.getElementById("chosen")];
const rows = [...document.querySelectorAll("tr[data-words]")];
const boxes = [...document.querySelectorAll("input[name=run]")];

function search() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => row.dataset.words.includes(word));
  const count = rows.filter((row) => !row.hidden).length;
  found.textContent = words.length === 0 ? "" : `${count} of ${rows.length}`;
}

function choose() {
  const count = boxes.filter((box) => box.checked).length;
  button.disabled = count < 2 || count > MOST;
  chosen.textContent = count === 0 ? "Choose two to eight runs" : `${count} chosen${count > MOST ? `, at most ${MOST}` : ""}`;
}

find?.addEventListener("input", search);
find?.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault(); // it would send the form
});
for (const box of boxes) box.addEventListener("change", choose);
if (button) choose();
