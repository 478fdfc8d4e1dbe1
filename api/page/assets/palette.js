// A palette over every page, on `/` or Ctrl-K: its pages, what can be done here, recent jobs, and the search for ids and
// words. It needs no stream. Without this module the link that opens it leads to the search form of the jobs.

const opener = document.querySelector("nav a.find");
const search = opener && opener.getAttribute("href").split("#")[0];
const MOST_JOBS = 8;
const MOST_SHOWN = 40;

let box = null;
let field = null;
let list = null;
let recent = [];
let shown = [];
let at = 0;

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function textOf(node) {
  return node.textContent.replace(/\s+/g, " ").trim();
}

function pages() {
  return [...document.querySelectorAll("nav[aria-label='Main'] > a:not(.find)")].map((link) => (
    { text: textOf(link), kind: "page", go: () => location.assign(link.href) }));
}

// What this page offers may be put in anew while the palette is open: it is looked up again by its words.
function here() {
  const found = () => [...document.querySelectorAll("main .acts button, main .acts a, main .bar a.btn, main .head a.btn")];
  const texts = [...new Set(found().filter((one) => one.offsetParent && !one.disabled).map(textOf))].filter(Boolean);
  return texts.map((text) => (
    { text, kind: "here", go: () => found().find((one) => textOf(one) === text)?.click() }));
}

async function lookForRecent() {
  if (!search) return;
  try {
    const answer = await fetch(search, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    recent = [...page.querySelectorAll("tr[id^='job-'] a.title")].slice(0, MOST_JOBS).map((link) => (
      { text: textOf(link), kind: "job", go: () => location.assign(link.getAttribute("href")) }));
    if (box.open) show();
  } catch { /* there are none to be shown then; all else works */ }
}

function fitting() {
  const given = field.value.trim();
  const words = given.toLowerCase().split(/\s+/);
  const found = [...here(), ...pages(), ...recent].filter((one) => {
    const text = one.text.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (given && search) {
    const query = new URLSearchParams({ q: given.slice(0, 200) });
    found.push({ text: `Find “${given}”: an id, or words of a job`, kind: "search", go: () => location.assign(`${search}?${query}`) });
  }
  return found.slice(0, MOST_SHOWN);
}

function show() {
  const before = shown[at]?.text;
  shown = fitting();
  at = Math.max(shown.findIndex((one) => one.text === before), 0);
  list.replaceChildren(...shown.map((one, index) => element(
    "li", { role: "option", id: `found-${index}`, "aria-selected": "false" },
    element("span", { class: "cut" }, one.text), element("span", { class: "muted" }, one.kind),
  )));
  mark();
}

function mark() {
  [...list.children].forEach((one, index) => one.setAttribute("aria-selected", String(index === at)));
  const chosen = list.children[at];
  field.setAttribute("aria-expanded", String(shown.length > 0));
  if (!chosen) return field.removeAttribute("aria-activedescendant");
  field.setAttribute("aria-activedescendant", chosen.id);
  chosen.scrollIntoView({ block: "nearest" });
}

function take(index) {
  const chosen = shown[index];
  if (!chosen) return;
  box.close();
  chosen.go();
}

function press(event) {
  if (event.isComposing) return;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && shown.length) {
    at = (at + step + shown.length) % shown.length;
    mark();
  } else if (event.key === "Enter") {
    take(at);
  } else {
    return;
  }
  event.preventDefault();
}

function make() {
  field = element("input", {
    id: "palette-field", type: "text", role: "combobox", "aria-expanded": "false", "aria-controls": "palette-list",
    "aria-haspopup": "listbox", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", maxlength: "200",
    placeholder: "A page, an action, a job, an id…", "aria-label": "Go to",
  });
  list = element("ul", { id: "palette-list", role: "listbox", "aria-label": "What fits" });
  const close = element("button", { type: "button", class: "btn quiet" }, "Close");
  box = element("dialog", { class: "palette", "aria-label": "Palette" }, element("div", { class: "row" }, field, close), list);
  close.addEventListener("click", () => box.close());
  field.addEventListener("input", () => { at = 0; shown = []; show(); });
  field.addEventListener("keydown", press);
  list.addEventListener("click", (event) => take([...list.children].indexOf(event.target.closest("li"))));
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  document.body.append(box);
}

function open() {
  if (!box) make();
  if (box.open) return;
  field.value = "";
  shown = [];
  box.showModal(); // it keeps the focus inside, closes on Escape, and gives the focus back
  show();
  field.focus();
  lookForRecent();
}

function isWriting(target) {
  return target instanceof Element && (target.isContentEditable || target.matches("input, textarea, select"));
}

document.addEventListener("keydown", (event) => {
  const isChord = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
  const isSlash = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !isWriting(event.target);
  if (!isChord && !isSlash) return;
  event.preventDefault();
  open();
});
opener?.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  open();
});
