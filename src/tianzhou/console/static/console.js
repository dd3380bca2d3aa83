// What a page gains by JavaScript: it asks again while it is seen, charts, keys. Everything else
// works without it. No state lives here: the address has it.
(() => {
  "use strict";
  const EVERY_MS = 5000;
  const page = () => document.getElementById("page");

  // -- live pages --------------------------------------------------------------------------------
  // An open page asks again while it is seen and nothing is being typed or selected in it.
  const isBusy = () => {
    const here = document.activeElement;
    const isTyping = here && here.closest("main") && here.matches("input, textarea, select");
    return isTyping || document.querySelector("main details[open].hold, main dialog[open]") !== null
      || String(window.getSelection()) !== "";
  };
  const refresh = () => {
    const main = page();
    if (main && "live" in main.dataset && !document.hidden && !isBusy() && window.htmx) {
      htmx.trigger(main, "refresh");
    }
  };
  setInterval(refresh, EVERY_MS);
  document.addEventListener("visibilitychange", refresh);

  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    const main = page();
    if (ctx.sourceElement === main) {
      // The address may have changed since the page was rendered: by a sort, a find, a page.
      ctx.request.action = location.pathname + location.search;
      ctx.request.headers["If-None-Match"] = main.dataset.etag;
    }
    if (ctx.sourceElement.matches("form.find")) {
      // Empty fields make the address longer for nothing.
      for (const [name, value] of [...ctx.request.body]) {
        if (value === "") ctx.request.body.delete(name);
      }
    }
  });

  const offline = (isOffline) => {
    const sign = document.getElementById("offline");
    if (sign) sign.hidden = !isOffline;
  };
  document.addEventListener("htmx:error", () => offline(true));
  document.addEventListener("htmx:before:response", () => offline(false));
  document.addEventListener("htmx:before:swap", (event) => {
    // An error must not replace the page that is open; the next answer may be right.
    const { response } = event.detail.ctx;
    const isError = response && response.status >= 500;
    offline(isError);
    if (isError) event.preventDefault();
  });

  // -- charts ------------------------------------------------------------------------------------
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const resolved = (name) => {
    const probe = document.createElement("span");
    probe.className = `probe ${name}`;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  const plots = new Map();
  const short = (value) => {
    if (value === null || value === undefined) return "?";
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toFixed(1)}G`;
    if (size >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return String(+value.toFixed(2));
  };
  const zoned = (zone) => (seconds) => {
    try {
      return uPlot.tzDate(new Date(seconds * 1000), zone);
    } catch {
      return new Date(seconds * 1000);
    }
  };
  // Labels of the time axis by the distance of its ticks in seconds, with the day below where it changes.
  const axisTimes = [
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  ];
  const chartHeight = 216;
  const draw = (box) => {
    const data = JSON.parse(box.dataset.chart);
    const old = plots.get(box);
    if (old) old.destroy();
    const axis = { stroke: resolved("muted"), grid: { stroke: resolved("line"), width: 1 },
      ticks: { stroke: resolved("line"), width: 1 }, font: `11px ${color("--font")}` };
    const unit = data.unit ? ` ${data.unit}` : "";
    const plot = new uPlot({
      width: box.clientWidth, height: chartHeight, tzDate: zoned(box.dataset.zone),
      cursor: { points: { size: 6 } }, legend: { live: true },
      scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? 0, 1) * 1.1] } },
      axes: [{ ...axis, values: axisTimes }, { ...axis, size: 52, values: (_, all) => all.map((value) => short(value)) }],
      series: [{ label: box.dataset.time, value: "{YYYY}-{MM}-{DD} {HH}:{mm}" }, ...data.series.map((each, index) => ({
        label: each.name, stroke: resolved(`series-${index % 6}`), width: 1.5, spanGaps: false,
        points: { show: false }, value: (_, value) => value === null ? "?" : short(value) + unit,
      }))],
    }, [data.times, ...data.series.map((each) => each.values)], box);
    plots.set(box, plot);
  };
  const charts = () => {
    if (!window.uPlot) return;
    for (const [box, plot] of plots) {
      if (!box.isConnected) { plot.destroy(); plots.delete(box); }
    }
    for (const box of document.querySelectorAll(".plot[data-chart]")) {
      if (plots.get(box) === undefined || box.dataset.drawn !== box.dataset.chart) {
        box.dataset.drawn = box.dataset.chart;
        draw(box);
      }
    }
  };
  new ResizeObserver(() => {
    for (const [box, plot] of plots) plot.setSize({ width: box.clientWidth, height: 200 });
  }).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const box of plots.keys()) draw(box);
  });
  document.addEventListener("htmx:after:swap", charts);

  // -- keys --------------------------------------------------------------------------------------
  const go = { o: "", t: "/topics", c: "/groups", b: "/brokers", m: "/messages", d: "/dead-letters" };
  let before = "";
  const rows = () => [...document.querySelectorAll("table.list tbody tr")];
  const step = (by) => {
    const all = rows();
    const now = all.findIndex((row) => row.contains(document.activeElement));
    const row = all[Math.min(Math.max(now + by, 0), all.length - 1)];
    const link = row && row.querySelector("a[href]");
    if (link) link.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inField = event.target.matches("input, textarea, select");
    if (event.key === "Escape") {
      if (inField) event.target.blur();
      for (const menu of document.querySelectorAll("header details[open]")) menu.open = false;
      return;
    }
    if (inField) return;
    const last = before;
    before = event.key;
    const keys = document.getElementById("keys");
    if (event.key === "/") {
      const find = document.getElementById("find");
      if (find) { event.preventDefault(); find.focus(); find.select(); }
    } else if (event.key === "?" && keys) {
      if (keys.open) keys.close(); else keys.showModal();
    } else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "[" || event.key === "]") {
      const link = document.querySelector(`.pager a[rel=${event.key === "[" ? "prev" : "next"}]`);
      if (link) link.click();
    } else if (last === "g" && event.key in go) {
      const home = document.querySelector("nav.side a[href*='/c/']");
      if (home) location.href = home.getAttribute("href").replace(/(\/c\/[^/]+).*/, "$1") + go[event.key];
    }
  });

  // -- menus -------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("header details[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
    if (event.target.closest("[data-copy]")) {
      navigator.clipboard?.writeText(event.target.closest("[data-copy]").dataset.copy);
    }
    const all = event.target.closest("[data-check-all]");
    if (all) {
      for (const box of document.querySelectorAll("main tbody input[type=checkbox]")) {
        box.checked = all.checked;
      }
    }
  });

  document.documentElement.classList.add("js");
  charts();
})();
