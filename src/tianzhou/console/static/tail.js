// Follows a topic: rows of a table, the newest on top, made from server-sent events. All values are
// set as text.
(() => {
  "use strict";
  const ROWS_MAX = 200;
  const box = document.querySelector("[data-tail]");
  if (!box) return;
  const body = box.querySelector("tbody");
  const template = box.querySelector("template");
  const state = (name) => {
    for (const each of box.querySelectorAll("[data-state]")) each.hidden = each.dataset.state !== name;
    const isOver = name !== "begin" && name !== "open";
    box.querySelector("[data-pause]").hidden = isOver;
    box.querySelector("[data-again]").hidden = !isOver;
  };
  const time = new Intl.DateTimeFormat("sv-SE", {
    timeZone: box.dataset.zone, year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
  });
  const size = (bytes) => bytes < 1024 ? `${bytes} B` : `${(bytes / 1024).toFixed(1)} KiB`;
  const show = (message) => {
    const row = template.content.firstElementChild.cloneNode(true);
    const cell = (name) => row.querySelector(`[data-of="${name}"]`);
    cell("stored").textContent = time.format(new Date(message.stored_ms)).replace(",", ".");
    const link = cell("id");
    link.href = box.dataset.message + encodeURIComponent(message.offset_id);
    link.title = message.id;
    link.textContent = message.id.length > 13 ? `…${message.id.slice(-12)}` : message.id;
    cell("tags").textContent = message.tags;
    cell("keys").textContent = message.keys.join(" ");
    cell("place").textContent = `${message.broker}/${message.queue}@${message.queue_offset}`;
    cell("size").textContent = size(message.size);
    const text = cell("body");
    text.textContent = message.preview === null ? text.dataset.binary
      : message.preview + (message.is_cut ? "…" : "");
    body.prepend(row);
    while (body.children.length > ROWS_MAX) body.lastElementChild.remove();
  };
  const source = new EventSource(box.dataset.tail);
  const end = (name, why = "") => {
    source.close();
    state(name);
    box.querySelector("[data-why]").textContent = why;
  };
  source.addEventListener("open", () => state("open"));
  source.addEventListener("message", (event) => show(JSON.parse(event.data)));
  source.addEventListener("state", (event) => {
    const counts = JSON.parse(event.data);
    box.querySelector("[data-shown]").textContent = counts.shown;
    box.querySelector("[data-skipped]").textContent = counts.skipped;
  });
  source.addEventListener("end", (event) => {
    const { why, text } = JSON.parse(event.data);
    end(why, text || "");
  });
  source.addEventListener("error", () => end("failed"));
  box.querySelector("[data-pause]").addEventListener("click", () => end("time"));
})();
