// A title and tags for a run, and deleting it once that was confirmed.

import { address, post, tell } from "./ask.js";

const find = (id) => document.getElementById(id);
const { name } = find("keep").dataset;

find("notes-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const kept = await post(`/api/notes/${address(name)}`, { title: find("title").value, tags: find("tags").value.split(",") });
    find("title").value = kept.title;
    find("tags").value = kept.tags.join(", ");
    find("kept").textContent = "kept";
  } catch (error) {
    find("kept").textContent = error.message;
  }
});

find("delete").addEventListener("click", () => find("sure").showModal());
find("no").addEventListener("click", () => find("sure").close());
find("yes").addEventListener("click", async () => {
  try {
    await post(`/api/delete/${address(name)}`, { confirmed: name });
    location.assign("/");
  } catch (error) {
    tell(find("not-deleted"), error.message);
  }
});

// Before this script is there a click would do nothing.
for (const button of [find("keep-it"), find("delete")]) button.disabled = false;
