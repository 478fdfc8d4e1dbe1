// Keeps a page up to date. `data-stream` names the events that say something has changed; what is marked `data-live`
// is then loaded anew, at most once a second, and put in place of what stands there.

const main = document.querySelector("main");
const banner = document.getElementById("cut");
const REFRESH_MS = 1000;
let due = null;
let lastAt = 0;

function isBusy(region) {
  const one = document.activeElement;
  return region.contains(one) && one.matches("input, textarea, select");
}

function replaceRegion(old, fresh) {
  if (old.outerHTML === fresh.outerHTML || isBusy(old)) return;
  for (const open of old.querySelectorAll("details[id]")) {
    const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
    if (same) same.open = open.open || same.open;
  }
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.getAttribute("href"));
  old.replaceWith(fresh);
  if (!mark) return;
  const again = mark.startsWith("#")
    ? fresh.querySelector(mark)
    : [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === mark);
  if (again) again.focus({ preventScroll: true });
}

async function refresh() {
  due = null;
  lastAt = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected && new URL(answer.url).pathname !== location.pathname) {
    location.assign(answer.url);
    return;
  }
  if (!answer.ok) throw new Error(String(answer.status));
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) replaceRegion(old, document.importNode(fresh, true));
  }
  document.title = page.title;
  const stream = page.querySelector("main").dataset.stream;
  if (!stream) delete main.dataset.stream;
  document.dispatchEvent(new CustomEvent("planq:fresh"));
}

function soon() {
  if (due !== null) return;
  const wait = Math.max(50, REFRESH_MS - (performance.now() - lastAt));
  due = setTimeout(() => refresh().catch(() => { due = null; setTimeout(soon, REFRESH_MS); }), wait);
}

const said = document.getElementById("said");

function hear(kind, data, id) {
  if (kind === "text") {
    if (said && data) {
      const piece = JSON.parse(data);
      if (!location.pathname.endsWith(piece.job_id)) return;
      const text = said.querySelector("pre");
      const epoch = `${piece.attempt}.${piece.try}`;
      const known = said.dataset.epoch === epoch ? [...text.textContent] : []; // offsets count code points
      said.dataset.epoch = epoch;
      text.textContent = known.slice(0, piece.offset).join("") + piece.text;
      said.hidden = false;
    }
    return;
  }
  if (said && (kind === "job" || kind.startsWith("job_"))) said.hidden = true;
  document.dispatchEvent(new CustomEvent("planq:event", { detail: { kind, data, id } }));
  soon();
}

let last = null;

async function follow() {
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const answer = await fetch(main.dataset.stream, { headers });
  if ([204, 401, 403].includes(answer.status)) {
    // Nothing is to come, the session has ended, or its key opens this page but not the stream.
    if (answer.status === 401) location.reload();
    delete main.dataset.stream;
    return;
  }
  if (!answer.ok) throw new Error(String(answer.status));
  banner.hidden = true;
  soon(); // what happened before the stream began
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      let kind = "message";
      const data = [];
      for (const line of frame.split("\n")) {
        if (line.startsWith("event:")) kind = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (line.startsWith("id:")) last = line.slice(3).trim();
      }
      if (data.length) hear(kind, data.join("\n"), last);
    }
  }
}

async function keepFollowing() {
  while (main && main.dataset.stream) {
    try {
      await follow();
    } catch {
      banner.hidden = false;
    }
    await new Promise((go) => setTimeout(go, 1000 + Math.random() * 1000));
  }
}

// A link to a step opens it, also from the picture of the plan.
function open() {
  const step = location.hash.startsWith("#step-") && document.getElementById(location.hash.slice(1));
  if (step) {
    step.open = true;
    step.scrollIntoView({ block: "nearest" });
  }
}

addEventListener("hashchange", open);
open();
keepFollowing();
