// Forms that are sent without leaving the page: a message, and the answer to a question beside it. Without this module
// they are sent as every form is, and lead back here.

const thread = document.querySelector("[data-thread]");
const refused = document.getElementById("refused");

// The end of the thread stays in sight for who was there; who reads further up is left alone.
function isAtEnd() {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  return scrollHeight - clientHeight - scrollTop < 120;
}

let wasAtEnd = true;

function toEnd() {
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}

async function send(form, button) {
  const buttons = form.querySelectorAll("button");
  const fields = new URLSearchParams(new FormData(form, button));
  const field = form.querySelector("textarea[data-enter]");
  const words = field && field.value;
  if (field) field.value = "";
  for (const one of buttons) one.disabled = true;
  try {
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body: fields });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok && new URL(answer.url).pathname === location.pathname) {
      refused.hidden = true;
      wasAtEnd = true;
      document.activeElement?.blur?.(); // a form that was sent gives its place to what the page shows now
      document.dispatchEvent(new CustomEvent("planq:page", { detail: page }));
      if (field) field.focus();
      return;
    }
    if (answer.ok) {
      location.assign(answer.url);
      return;
    }
    refuse(page.querySelector("main .say")?.textContent ?? String(answer.status));
  } catch {
    refuse("planq does not answer; what you wrote is still here. Try again in a moment.");
  } finally {
    for (const one of buttons) one.disabled = false;
  }
  if (field && !field.value) field.value = words;
}

function refuse(why) {
  refused.textContent = why;
  refused.hidden = false;
}

if (thread && refused) {
  thread.addEventListener("submit", (event) => {
    event.preventDefault();
    send(event.target, event.submitter);
  });
  addEventListener("scroll", () => { wasAtEnd = isAtEnd(); }, { passive: true });
  new ResizeObserver(() => { if (wasAtEnd) toEnd(); }).observe(thread);
  toEnd();
}

for (const field of document.querySelectorAll("textarea[data-enter]")) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.altKey || event.isComposing) return;
    event.preventDefault();
    if (field.form.reportValidity()) field.form.requestSubmit();
  });
}
