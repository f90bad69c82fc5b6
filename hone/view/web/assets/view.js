// What every page does: theme, keyboard, hover values of charts, filters of exported tables, live refresh.
"use strict";
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const fixed = document.body.hasAttribute("data-static");

// --- theme

const switchTheme = () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("hone-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
};
find("[data-theme-toggle]").addEventListener("click", switchTheme);
const help = find("#help");
find("[data-help]").addEventListener("click", () => help.showModal());

// --- times

const span = (seconds) => {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
};
const tellTimes = (root = document) => {
  for (const time of all("time[data-at], time[data-age]", root)) {
    const at = Number(time.dataset.at || time.dataset.age);
    if (!at) continue;
    if (!time.title) time.title = time.textContent;
    const past = span(Date.now() / 1000 - at);
    time.textContent = time.dataset.age ? past : `${past} ago`;
  }
};
if (!fixed) { tellTimes(); setInterval(tellTimes, 5000); }

// --- the box under the pointer

const tip = find("#tip");
const showTip = (content, x, y) => {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + box.height + 24 > innerHeight ? Math.max(6, y - box.height - 12) : y + 16}px`;
};
const hideTip = () => { tip.hidden = true; };
const make = (tag, text, css) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (css) element.className = css;
  return element;
};
const tipTable = (rows) => {
  const table = make("table"), body = make("tbody");
  for (const [name, value, css] of rows) {
    const row = make("tr"), first = make("td");
    if (css) first.append(make("i", "", `key ${css}`));
    first.append(name);
    row.append(first, make("td", value));
    body.append(row);
  }
  table.append(body);
  return table;
};

// --- charts

const SVG = "http://www.w3.org/2000/svg";
const chartOf = (svg) => (svg.chart ??= JSON.parse(svg.dataset.chart));
const pointAt = (svg, index) => {
  const chart = chartOf(svg), cursor = find(".cursor", svg), box = svg.getBoundingClientRect();
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  svg.at = index = Math.max(0, Math.min(chart.px.length - 1, index));
  const rule = document.createElementNS(SVG, "line");
  for (const [name, value] of [["x1", chart.px[index]], ["x2", chart.px[index]], ["y1", 8], ["y2", height - 24]]) rule.setAttribute(name, value);
  rule.setAttribute("class", "rule");
  const marks = chart.rows.filter((row) => row.py[index] !== null).map((row) => {
    const mark = document.createElementNS(SVG, "circle");
    mark.setAttribute("cx", chart.px[index]); mark.setAttribute("cy", row.py[index]); mark.setAttribute("r", 3.6);
    mark.setAttribute("class", `mark ${row.css}`);
    return mark;
  });
  cursor.replaceChildren(rule, ...marks);
  const rows = chart.rows.filter((row) => row.text[index] !== "").map((row) => [row.name.replaceAll("_", " "), row.text[index], row.css]);
  showTip([make("b", `${chart.axis} ${chart.steps[index]}`), tipTable(rows)], box.left + chart.px[index] * box.width / width, box.top + box.height / 2);
};
const leaveChart = (svg) => { find(".cursor", svg).replaceChildren(); hideTip(); };
document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest?.("svg[data-chart]");
  if (svg) {
    const box = svg.getBoundingClientRect(), width = Number(svg.getAttribute("viewBox").split(" ")[2]);
    const x = (event.clientX - box.left) * width / box.width, pixels = chartOf(svg).px;
    let nearest = 0;
    pixels.forEach((each, index) => { if (Math.abs(each - x) < Math.abs(pixels[nearest] - x)) nearest = index; });
    pointAt(svg, nearest);
    return;
  }
  const told = event.target.closest?.("[data-tip]");
  if (told) showTip([document.createTextNode(told.dataset.tip)], event.clientX, event.clientY);
});
document.addEventListener("pointerout", (event) => {
  const svg = event.target.closest?.("svg[data-chart]");
  if (svg && !svg.contains(event.relatedTarget)) leaveChart(svg);
  if (event.target.closest?.("[data-tip]")) hideTip();
});
document.addEventListener("focusout", (event) => { if (event.target.dataset?.chart) leaveChart(event.target); });

// --- rows, and the keyboard

let chosen = null; // key of the selected row, which survives a refresh
const rows = () => all("[data-row]").filter((row) => !row.hidden);
const keyOf = (row) => row.dataset.key ?? row.id;
const select = (row) => {
  all(".selected").forEach((each) => each.classList.remove("selected"));
  chosen = row ? keyOf(row) : null;
  row?.classList.add("selected");
};
const step = (by) => {
  const list = rows(), now = list.findIndex((row) => row.classList.contains("selected"));
  const next = list[Math.max(0, Math.min(list.length - 1, now < 0 ? 0 : now + by))];
  if (next) { select(next); next.scrollIntoView({ block: next.tagName === "ARTICLE" ? "start" : "nearest" }); }
};
let waiting = ""; // "g" was pressed
const go = (name) => { const link = find(`[data-go="${CSS.escape(name)}"]`); if (link) location.href = link.href; };
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input:not([type=checkbox]):not([type=radio]), select, textarea");
  if (event.key === "Escape") { hideTip(); if (typing) event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const svg = event.target.closest("svg[data-chart]");
  if (svg && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
    event.preventDefault();
    pointAt(svg, svg.at === undefined ? (event.key === "ArrowLeft" ? Infinity : 0) : svg.at + (event.key === "ArrowLeft" ? -1 : 1));
    return;
  }
  if (waiting) { waiting = ""; go(event.key); return; }
  const acts = {
    j: () => step(1), k: () => step(-1), t: switchTheme, "?": () => help.showModal(),
    g: () => { waiting = "g"; setTimeout(() => { waiting = ""; }, 1200); },
    "[": () => go("["), "]": () => go("]"),
    "/": () => find("[data-quick], [data-focus]")?.focus(),
  };
  if (event.key === "Enter") {
    const link = event.target === document.body && find(".selected a.open");
    if (link) location.href = link.href;
  } else if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
});

// --- a part of the page that the address names

const openAnchor = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
};
openAnchor();
addEventListener("hashchange", openAnchor);
for (const details of all("details[data-anchor]")) {
  details.addEventListener("toggle", () => { if (details.open && details.matches(":hover")) history.replaceState(null, "", `#${details.id}`); });
}
const outline = new Map(all(".outline a").map((link) => [link.hash.slice(1), link]));
if (outline.size) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) outline.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-110px 0px -40% 0px" });
  all(".turn[id]").forEach((turn) => seen.observe(turn));
}

// --- filters

const quick = find("[data-quick]");
const filterQuick = () => {
  const wanted = quick.value.toLowerCase();
  for (const row of all("tbody [data-row]")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
};
quick?.addEventListener("input", filterQuick);

const filters = find("[data-filters]");
const KEEPS = {
  task: (row, value) => row.task.includes(value),
  outcome: (row, value) => row.outcome === value,
  disposition: (row, value) => row.disposition === value,
  step: (row, value) => row.step === value,
  group: (row, value) => row.group === value,
  tampered: (row, value) => row.tampered === value,
  signals: (row, value) => row.signals === value,
  forks: (row, value) => row.forks === value,
  min_reward: (row, value) => row.reward !== "" && Number(row.reward) >= Number(value),
  max_reward: (row, value) => row.reward !== "" && Number(row.reward) <= Number(value),
  min_tokens: (row, value) => Number(row.tokens) >= Number(value),
  max_tokens: (row, value) => Number(row.tokens) <= Number(value),
};
if (filters && fixed) { // an exported table holds every row, and filters them here
  const apply = (wanted) => {
    const asked = [...wanted].filter(([name, value]) => value !== "" && KEEPS[name]);
    let found = 0;
    for (const row of all("tbody [data-row]")) {
      row.hidden = !asked.every(([name, value]) => KEEPS[name](row.dataset, value));
      found += !row.hidden;
    }
    find("[data-count]").textContent = found.toLocaleString("en");
  };
  const asked = new URLSearchParams(location.search);
  for (const [name, value] of asked) if (filters.elements[name]) filters.elements[name].value = value;
  apply(asked);
  filters.addEventListener("submit", (event) => { event.preventDefault(); apply(new FormData(filters)); });
  filters.addEventListener("input", () => apply(new FormData(filters)));
} else if (filters) {
  filters.addEventListener("submit", () => { // what filters nothing stays out of the address
    for (const field of filters.elements) if (field.name && field.value === "") field.disabled = true;
  });
  filters.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") filters.requestSubmit(); });
  addEventListener("pageshow", () => { for (const field of filters.elements) field.disabled = false; });
}

const compare = find("[data-compare]");
if (compare) {
  const count = () => {
    const picked = all("input[name=run]:checked").length;
    compare.disabled = picked < 2 || picked > 6;
    compare.textContent = picked ? `Compare ${picked} chosen` : "Compare chosen";
  };
  document.addEventListener("change", count);
  count();
}

// --- live: ask for the page again, and replace the parts that changed

const REFRESH_MS = 2500;
const parts = (root) => new Map(all("[data-part]", root).map((part) => [part.dataset.part, part]));
let sources = null; // part -> its HTML as the server sent it
const htmlOf = (root) => new Map([...parts(root)].map(([name, part]) => [name, part.outerHTML]));
const keepState = (old, fresh) => {
  const open = new Set(all("details[open]", old).map((each) => each.id).filter(Boolean));
  for (const details of all("details[id]", fresh)) if (open.has(details.id)) details.open = true;
  const picked = new Set(all("input:checked", old).map((each) => each.value));
  for (const input of all("input[type=checkbox]", fresh)) if (picked.has(input.value)) input.checked = true;
  for (const row of all("[data-row]", fresh)) if (chosen !== null && keyOf(row) === chosen) row.classList.add("selected");
};
const busyWith = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select");
const refresh = async () => {
  let answer;
  try { answer = await fetch(location.href, { cache: "no-cache", credentials: "same-origin" }); } catch { return true; } // the server is away: try again
  if (!answer.ok) return true;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const shown = parts(document), fresh = parts(page), texts = htmlOf(page);
  for (const [name, part] of fresh) {
    const old = shown.get(name);
    if (!old || texts.get(name) === sources?.get(name) || busyWith(old)) continue;
    const place = [old.scrollLeft, old.scrollTop], next = document.importNode(part, true);
    keepState(old, next);
    old.replaceWith(next);
    [next.scrollLeft, next.scrollTop] = place;
    for (const [index, inner] of all(".scroll, .events", next).entries()) {
      const before = all(".scroll, .events", old)[index];
      if (before) inner.scrollTop = before.scrollTop;
    }
    tellTimes(next);
  }
  sources = texts;
  if (quick?.value) filterQuick();
  return page.body.hasAttribute("data-live");
};
const follow = async () => {
  if (!document.hidden && !(await refresh())) { find(".livedot").textContent = ""; return; }
  setTimeout(follow, REFRESH_MS);
};
if (document.body.hasAttribute("data-live") && !fixed) setTimeout(follow, REFRESH_MS);
