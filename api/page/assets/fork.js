// Checks an edited plan while it is typed: what is wrong stands beside its line, else what a fork would do and what was
// changed. Without this module the button "Look first" tells the same.

const form = document.querySelector("form[data-check]");
const field = form.elements.plan;
const told = document.getElementById("checking");
const gutter = document.createElement("pre");
const PAUSE_MS = 400;
let due = null;
let under = null;

gutter.className = "gutter";
gutter.setAttribute("aria-hidden", "true");
field.before(gutter);

// The numbers of the lines, those with a defect marked; what it is stands in the list, for everybody.
function number() {
  const wrong = new Set([...document.querySelectorAll("#checked [data-line]")].map((one) => Number(one.dataset.line)));
  const lines = field.value.split("\n").length;
  gutter.replaceChildren(...Array.from({ length: lines }, (_, at) => {
    const line = document.createElement("span");
    line.textContent = `${at + 1}\n`;
    if (wrong.has(at + 1)) line.className = "is-bad";
    return line;
  }));
  gutter.scrollTop = field.scrollTop;
}

async function check() {
  under?.abort();
  under = new AbortController();
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.dataset.check, { method: "POST", body, signal: under.signal });
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = document.importNode(page.getElementById("checked"), true);
    for (const alert of fresh.querySelectorAll("[role=alert]")) alert.removeAttribute("role"); // at each key
    document.getElementById("checked").replaceWith(fresh);
    const count = fresh.querySelectorAll(".defects li").length;
    told.textContent = count ? `${count} ${count === 1 ? "defect" : "defects"}` : "";
    number();
  } catch (error) {
    if (error.name !== "AbortError") told.textContent = "It could not be checked; \"Look first\" tries again.";
  }
}

field.addEventListener("input", () => {
  number();
  clearTimeout(due);
  due = setTimeout(check, PAUSE_MS);
});
form.elements.repeat_unsafe.addEventListener("change", check);
field.addEventListener("scroll", () => { gutter.scrollTop = field.scrollTop; });
document.addEventListener("click", (event) => {
  const line = Number(event.target.closest?.("#checked [data-line]")?.dataset.line);
  if (!line) return;
  event.preventDefault();
  const lines = field.value.split("\n");
  const begin = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  field.focus();
  field.setSelectionRange(begin, begin + lines[line - 1].length);
  field.scrollTop = (line - 4) * (field.scrollHeight / lines.length);
});
number();
