// Sends a batch's file: takes it where it is dropped, tells what it holds, and how far it has come.

const form = document.getElementById("send");
const field = document.getElementById("file");
const told = document.getElementById("file-told");
const box = document.getElementById("refused");
const bar = document.getElementById("sending");
const stop = document.getElementById("stop");
const LINE_END = 10;
let looked = 0;

function size(bytes) {
  return bytes < 1048576 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`;
}

function refuse(text) {
  box.firstElementChild.textContent = text;
  box.hidden = !text;
  if (text) box.scrollIntoView({ block: "nearest" });
}

// Piece by piece, so that a long file is never held as a whole.
async function look() {
  const turn = ++looked;
  const file = field.files[0];
  refuse("");
  told.textContent = "";
  if (!file) return;
  const most = Number(form.dataset.most);
  if (file.size > most) {
    refuse(`The file has ${size(file.size)}; at most ${size(most)} are taken. Send several.`);
    return;
  }
  let lines = 0;
  let isBegun = false;
  const reader = file.stream().getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (turn !== looked) return void reader.cancel();
    if (done) break;
    let from = 0;
    for (let at = value.indexOf(LINE_END); at >= 0; at = value.indexOf(LINE_END, from)) {
      if (isBegun || at > from) lines += 1;
      isBegun = false;
      from = at + 1;
    }
    isBegun = isBegun || from < value.length;
  }
  lines += isBegun ? 1 : 0;
  told.textContent = `${size(file.size)}, ${lines} ${lines === 1 ? "line" : "lines"}. What they are taken to cost is told before any of them begins.`;
}

function drop(event) {
  event.preventDefault();
  form.classList.remove("is-over");
  if (!event.dataTransfer.files.length) return;
  field.files = event.dataTransfer.files;
  look();
}

function send(event) {
  event.preventDefault();
  const request = new XMLHttpRequest(); // fetch tells nothing of what is on its way
  const done = (text) => {
    refuse(text);
    bar.hidden = stop.hidden = true;
    form.querySelector(".main").disabled = false;
    stop.onclick = null;
  };
  request.open("POST", form.action);
  request.upload.onprogress = ({ loaded, total }) => {
    bar.value = total ? loaded / total : 0;
  };
  request.onload = () => {
    if (request.status < 300) {
      location.assign(request.responseURL);
      return;
    }
    const page = new DOMParser().parseFromString(request.responseText, "text/html");
    done(page.querySelector("main .say, main p:not([hidden])")?.textContent.trim() || `Refused: ${request.status}`);
  };
  request.onerror = () => done("The connection broke. Nothing was stored; send it again.");
  request.onabort = () => done("Stopped. Nothing was stored.");
  stop.onclick = () => request.abort();
  refuse("");
  bar.value = 0;
  bar.hidden = stop.hidden = false;
  form.querySelector(".main").disabled = true;
  request.send(new FormData(form));
}

if (form) {
  form.classList.add("has-scripts");
  field.addEventListener("change", look);
  form.addEventListener("dragover", (event) => {
    event.preventDefault();
    form.classList.add("is-over");
  });
  form.addEventListener("dragleave", () => form.classList.remove("is-over"));
  form.addEventListener("drop", drop);
  form.addEventListener("submit", send);
}
