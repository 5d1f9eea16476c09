// Fetches the page anew every ten seconds and puts its content in place, so that scrolling and marked text stay where they are.
"use strict";
const PERIOD_MS = 10000;
let failures = 0;

async function refresh() {
  const state = document.getElementById("state");
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const content = document.getElementById("content");
    const writing = Boolean(document.activeElement?.closest("form"));
    const waits = writing || String(getSelection()).length > 0;
    if (!waits) content.replaceChildren(...fresh.getElementById("content").childNodes);
    document.title = fresh.title;
    failures = 0;
    state.textContent = waits ? "Waits while text is marked or written" : "Refreshed " + new Date().toLocaleTimeString();
    state.className = "";
  } catch {
    failures += 1;
    state.textContent = "The coordinator does not answer; what you see is " + failures * (PERIOD_MS / 1000) + " s old or older";
    state.className = "late";
  }
}

setInterval(() => { if (!document.hidden) refresh(); }, PERIOD_MS);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
