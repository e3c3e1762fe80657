// Questions to the server; what goes wrong comes back as an error in words.

export function readData() {
  return JSON.parse(document.getElementById("data").textContent);
}

export function address(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

export async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Error("The server does not answer: is fedmeta ui still running?");
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new Error(answer?.problem ? `${answer.problem}: ${answer.remedy}.` : `The server answered ${response.status}.`);
}

export function post(url, value) {
  return ask(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });
}

export function tell(place, message) {
  place.textContent = message;
  place.hidden = message === "";
}
