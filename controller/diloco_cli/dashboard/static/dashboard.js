// Keeps an open page up to date: sections that changed are replaced, and times that go by are counted here.
"use strict";

function duration(seconds) { // as view_text.duration
  const whole = Math.max(0, Math.round(seconds)), two = (number) => String(number).padStart(2, "0");
  const days = Math.floor(whole / 86400), hours = Math.floor(whole / 3600) % 24, minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
  if (days) return `${days}d${two(hours)}h`;
  if (hours) return `${hours}h${two(minutes)}m`;
  return minutes ? `${minutes}m${two(rest)}s` : `${rest}s`;
}

function count(times) {
  const now = Date.now();
  for (const time of times) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    if (!time.title) time.title = new Date(time.dateTime).toLocaleString();
    const text = time.dataset.kind === "until" ? (seconds < 0 ? duration(-seconds) : "-") : duration(seconds);
    if (time.textContent !== text) time.textContent = text;
  }
}

function replace(id, version, html) {
  const section = document.getElementById(id);
  if (!section || section.dataset.version === version) return;
  const scrolled = [...section.querySelectorAll(".table, .charts, .log")].map((each) => [each.scrollLeft, each.scrollTop]);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const where = focused && (focused.getAttribute("href") || focused.getAttribute("aria-label"));
  const made = document.createElement("template");
  made.innerHTML = html; // every text in it was escaped by the server, and the policy of the page runs no script of it
  count(made.content.querySelectorAll("time"));
  section.replaceChildren(made.content);
  section.dataset.version = version;
  section.querySelectorAll(".table, .charts, .log").forEach((each, number) => { [each.scrollLeft, each.scrollTop] = scrolled[number] || [0, 0]; });
  if (where) {
    const found = [...section.querySelectorAll("[href], [aria-label]")].find(
      (each) => (each.getAttribute("href") || each.getAttribute("aria-label")) === where);
    if (found) found.focus({ preventScroll: true });
  }
}

const connection = document.getElementById("connection");
function say(text, lost) {
  connection.textContent = text;
  connection.classList.toggle("lost", lost);
}
function sayWhetherLive() { // the command may run, and what it shows be old
  const old = document.getElementById("notice").hasChildNodes();
  say(old ? "not live" : "live", old);
}

let pressed = false;
let waiting = {}; // by id, sections that came while the mouse was pressed: a link that is replaced before its release gets no click
function update() {
  if (pressed || !Object.keys(waiting).length) return;
  for (const [id, { version, html }] of Object.entries(waiting)) replace(id, version, html);
  sayWhetherLive();
  performance.measure("update", "update");
  waiting = {};
}
addEventListener("pointerdown", (event) => { pressed = event.button === 0; });
for (const released of ["pointerup", "pointercancel"]) {
  addEventListener(released, () => { pressed = false; setTimeout(update); }); // the click comes after it
}

const updates = new EventSource(location.pathname);
updates.addEventListener("open", sayWhetherLive);
updates.addEventListener("error", () => say(`no connection since ${new Date().toLocaleTimeString()}: has the command ended?`, true));
updates.addEventListener("sections", (event) => {
  performance.mark("update");
  Object.assign(waiting, JSON.parse(event.data));
  update();
});
count(document.querySelectorAll("time"));
setInterval(() => count(document.querySelectorAll("time")), 1000);
