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

// What finds in a region that is loaded anew what has the focus in the old one; null where nothing has it.
function finderOf(old) {
  const one = document.activeElement;
  if (!old.contains(one)) return null;
  if (one.id) return (fresh) => fresh.querySelector(`#${CSS.escape(one.id)}`);
  if (one.matches("summary") && one.parentElement.id) {
    return (fresh) => fresh.querySelector(`#${CSS.escape(one.parentElement.id)} > summary`);
  }
  const href = one.getAttribute("href");
  return href && ((fresh) => [...fresh.querySelectorAll("a")].find((link) => link.getAttribute("href") === href));
}

const SCROLLED = ".scroll, .tall, .tree, pre";

function replaceRegion(old, fresh) {
  if (isBusy(old)) return;
  for (const open of old.querySelectorAll("details[id]")) {
    const same = fresh.querySelector(`#${CSS.escape(open.id)}`);
    if (!same) continue;
    same.open = open.open || same.open;
    const loaded = open.querySelector(":scope > .below[data-status]");
    if (loaded) same.querySelector(":scope > .below").replaceWith(loaded.cloneNode(true));
  }
  if (old.outerHTML === fresh.outerHTML) return;
  const find = finderOf(old);
  const scrolled = [...old.querySelectorAll(SCROLLED)].map((one) => [one.scrollLeft, one.scrollTop]);
  old.replaceWith(fresh);
  const again = fresh.querySelectorAll(SCROLLED);
  if (again.length === scrolled.length) scrolled.forEach((to, at) => { if (to[0] || to[1]) again[at].scrollTo(...to); });
  if (find) find(fresh)?.focus({ preventScroll: true });
}

const loading = new Set();

// A child job opens within the page of its parent: it is loaded then, and again while it moves.
async function loadBelow(child) {
  const shown = child.querySelector(":scope > .below");
  const isOver = shown.dataset.over && shown.dataset.status === child.dataset.status;
  if (!child.open || isOver || loading.has(child.id)) return;
  loading.add(child.id);
  try {
    const answer = await fetch(child.dataset.src, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = answer.ok && page.querySelector(".below");
    if (fresh && shown.isConnected) replaceRegion(shown, document.importNode(fresh, true));
  } catch {
    // Its link stays there, or what was loaded before; the next look at the page tries again.
  } finally {
    loading.delete(child.id);
  }
}

function loadAllBelow() {
  for (const child of document.querySelectorAll("details[data-src][open]")) loadBelow(child);
}

document.addEventListener("toggle", ({ target }) => { if (target.dataset?.src) loadBelow(target); }, true);

async function refresh() {
  due = null;
  lastAt = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected && new URL(answer.url).pathname !== location.pathname) {
    location.assign(answer.url);
    return;
  }
  if (!answer.ok) throw new Error(String(answer.status));
  show(new DOMParser().parseFromString(await answer.text(), "text/html"));
}

function show(page) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) replaceRegion(old, document.importNode(fresh, true));
  }
  document.title = page.title;
  const saidNow = page.getElementById("said");
  if (said && (said.dataset.over || saidNow?.dataset.job !== said.dataset.job)) stopSaying(saidNow?.dataset.job);
  const stream = page.querySelector("main").dataset.stream;
  if (stream && !isRefused) main.dataset.stream = stream;
  else delete main.dataset.stream;
  if (stream !== followed) wake();
  loadAllBelow();
  document.dispatchEvent(new CustomEvent("planq:fresh"));
}

function soon() {
  if (due !== null) return;
  const wait = Math.max(50, REFRESH_MS - (performance.now() - lastAt));
  due = setTimeout(() => refresh().catch(() => { due = null; setTimeout(soon, REFRESH_MS); }), wait);
}

const said = document.getElementById("said");

// What a model says stands there until the page shows its answer, so that nothing jumps in between.
function stopSaying(job) {
  said.hidden = true;
  said.querySelector("pre").textContent = "";
  delete said.dataset.over;
  delete said.dataset.epoch;
  if (job) said.dataset.job = job;
  else delete said.dataset.job;
}

function hear(kind, data, id) {
  if (kind === "text") {
    if (said && data) {
      const piece = JSON.parse(data);
      if (said.dataset.job !== piece.job_id || said.dataset.over) return;
      const text = said.querySelector("pre");
      const epoch = `${piece.attempt}.${piece.try}`;
      const known = said.dataset.epoch === epoch ? [...text.textContent] : []; // offsets count code points
      said.dataset.epoch = epoch;
      text.textContent = known.slice(0, piece.offset).join("") + piece.text;
      said.hidden = false;
    }
    return;
  }
  if (said && ["job", "job_completed", "job_failed", "job_cancelled"].includes(kind)) said.dataset.over = "1";
  document.dispatchEvent(new CustomEvent("planq:event", { detail: { kind, data, id } }));
  soon();
}

let last = null;
let followed = null;
let isRefused = false;
let cutter = new AbortController();
let go = () => {};

// Looks anew at what is to be followed: the page names another stream, or somebody has come back to this tab.
function wake() {
  cutter.abort();
  cutter = new AbortController();
  go();
}

async function follow(stream) {
  const headers = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const answer = await fetch(stream, { headers, signal: cutter.signal });
  if ([204, 401, 403].includes(answer.status)) {
    // Nothing is to come, the session has ended, or its key opens this page but not the stream.
    if (answer.status === 401) location.reload();
    isRefused = answer.status !== 204;
    delete main.dataset.stream;
    if (!isRefused) setTimeout(soon, REFRESH_MS); // what comes after the end: a turn is written down, the next begins
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

// A tab that nobody sees follows nothing: a browser has six connections to one server, for all its tabs.
async function keepFollowing() {
  while (main) {
    const stream = document.hidden ? null : main.dataset.stream;
    if (stream !== followed) last = null;
    followed = stream ?? null;
    if (!stream) {
      await new Promise((wanted) => { go = wanted; });
      continue;
    }
    try {
      await follow(stream);
    } catch (error) {
      if (error.name === "AbortError") continue;
      banner.hidden = false;
    }
    await new Promise((wanted) => { go = wanted; setTimeout(wanted, 1000 + Math.random() * 1000); });
  }
}

document.addEventListener("visibilitychange", () => {
  wake();
  if (!document.hidden && document.querySelector("[data-live]")) soon();
});

// What moves without an event is looked at from time to time; as long as there is a stream, where there was one.
function keepLooking() {
  const seconds = Number(main && main.dataset.poll);
  if (!seconds) return;
  const isFollowed = Boolean(main.dataset.stream);
  const timer = setInterval(() => {
    if (isFollowed && !main.dataset.stream) clearInterval(timer);
    else if (!document.hidden) soon();
  }, seconds * 1000);
}

// A link to a step or to a worker opens it, also from the picture of the plan.
function open() {
  const step = /^#(step|worker)-/.test(location.hash) && document.getElementById(location.hash.slice(1));
  if (step) {
    for (let one = step; one; one = one.parentElement.closest("details")) if ("open" in one) one.open = true;
    step.scrollIntoView({ block: "nearest" });
  }
}

// On a phone the navigation is a row that is longer than the screen: the page that is shown is to be seen in it.
const here = document.querySelector("nav [aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;

document.addEventListener("planq:page", (event) => show(event.detail));
addEventListener("hashchange", open);
open();
keepLooking();
keepFollowing();
