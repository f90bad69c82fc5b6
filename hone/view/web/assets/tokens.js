// The token view: draws the tokens of a node when it scrolls into view, and says everything about one on hover.
"use strict";
(() => {
  const CHUNK = 800, FOLDED = 400; // tokens drawn at a time; longer rendered nodes begin folded
  const { nodes, branches } = JSON.parse(document.getElementById("data").textContent);
  const root = find("#nodes"), tree = find("#tree"), legend = find("#legend"), branchOf = find("#branch");
  const byNode = new Map(nodes.map((node) => [node.node, node]));
  const at = (column, index) => (column.length === 1 ? column[0] : column[index]) ?? null;
  const number = (value, digits = 4) => (value === null ? "unknown" : Math.abs(value) > 0 && Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toFixed(digits))));
  const versions = [...new Set(nodes.flatMap((node) => node.version))].filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  const mismatch = (node, index) => {
    const trainer = at(node.trainer, index), engine = at(node.logprob, index);
    return trainer === null || engine === null ? null : trainer - engine;
  };

  // --- colours: a class for each value

  const largest = (value) => {
    let found = 0;
    for (const node of nodes) for (let i = 0; i < node.ids.length; i++) found = Math.max(found, Math.abs(value(node, i) ?? 0));
    return found;
  };
  const signed = (value, span) => {
    if (value === null) return "none";
    const level = span > 0 ? Math.min(4, Math.ceil(4 * Math.abs(value) / span)) : 0;
    return level === 0 ? "q0" : (value > 0 ? "p" : "m") + level;
  };
  const strong = (value, span) => (value === null ? "none" : `q${span > 0 ? Math.max(0, Math.min(5, Math.round(5 * value / span))) : 0}`);
  const spans = {};
  const spanOf = (by) => (spans[by] ??= {
    logprob: () => Math.min(5, largest((node, i) => at(node.logprob, i))),
    entropy: () => largest((node, i) => at(node.entropy, i)),
    advantage: () => largest((node, i) => at(node.advantage, i)),
    mismatch: () => largest(mismatch),
    version: () => versions.length, weight: () => 1,
  }[by]());
  const COLOUR = {
    logprob: (node, i) => { const v = at(node.logprob, i); return strong(v === null ? null : -v, spanOf("logprob")); },
    entropy: (node, i) => strong(at(node.entropy, i), spanOf("entropy")),
    advantage: (node, i) => signed(at(node.advantage, i), spanOf("advantage")),
    mismatch: (node, i) => signed(mismatch(node, i), spanOf("mismatch")),
    version: (node, i) => { const v = at(node.version, i); return v === null ? "none" : `v${versions.indexOf(v) % 6}`; },
    weight: (node, i) => (at(node.weight, i) > 0 ? "p3" : node.sampled ? "m2" : "none"),
  };
  let by = "logprob";
  const swatch = (css, text) => { const item = make("span"); item.append(make("i", "", css), text); return item; };
  const scale = (classes, low, high) => [make("span", low), ...classes.map((css) => make("i", "", css)), make("span", high)];
  const drawLegend = () => {
    const span = spanOf(by), unknown = make("span", "grey text: no value");
    const wide = ["m4", "m3", "m2", "m1", "q0", "p1", "p2", "p3", "p4"];
    const items = {
      logprob: () => [...scale(["q0", "q1", "q2", "q3", "q4", "q5"], "0", `−${number(span, 2)} or less`), unknown],
      entropy: () => [...scale(["q0", "q1", "q2", "q3", "q4", "q5"], "0", `${number(span, 3)} nats`), unknown],
      advantage: () => [...scale(wide, `−${number(span, 3)}`, `+${number(span, 3)}`), unknown],
      mismatch: () => [...scale(wide, `−${number(span)}`, `+${number(span)}`), unknown],
      version: () => [...versions.slice(0, 12).map((v, i) => swatch(`v${i % 6}`, `version ${v}`)), unknown],
      weight: () => [swatch("p3", "trained"), swatch("m2", "sampled, not trained"), make("span", "grey: rendered")],
    }[by]();
    legend.replaceChildren(...items);
  };

  // --- tokens

  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;
  const plain = (text) => text.replace(HIDDEN, (found) => `\\u${found.codePointAt(0).toString(16).padStart(4, "0")}`);
  const shownText = (node, index) => (node.texts === null ? `${node.ids[index]} ` : plain(node.texts[index]));
  const drawToken = (node, index) => {
    const element = make("span", undefined, `t ${COLOUR[by](node, index)}`), text = shownText(node, index);
    element.dataset.i = index;
    if (text.includes("\n")) {
      const [first, ...rest] = text.split("\n");
      element.append(first);
      for (const piece of rest) element.append(make("span", "↵", "ctl"), `\n${piece}`);
    } else element.textContent = text === "" ? "·" : text;
    return element;
  };
  const drawChunk = (chunk) => {
    if (chunk.drawn) return;
    chunk.drawn = true;
    const node = byNode.get(Number(chunk.dataset.node)), from = Number(chunk.dataset.from);
    const pieces = document.createDocumentFragment();
    for (let i = from; i < Math.min(from + CHUNK, node.ids.length); i++) pieces.append(drawToken(node, i));
    chunk.replaceChildren(pieces);
    chunk.style.minHeight = "";
  };
  const visible = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { visible.unobserve(entry.target); drawChunk(entry.target); }
  }, { rootMargin: "600px 0px" });
  const drawNode = (node) => {
    const section = make("section", undefined, `node${node.sampled ? " sampled" : ""}`), header = make("header");
    section.id = `node-${node.node}`;
    if (node.sampled) { section.dataset.row = ""; }
    header.append(make("b", `node ${node.node}`), make("span", `turn ${node.turn}`), make("span", node.sampled ? "sampled" : "rendered"), make("span", `${node.ids.length.toLocaleString("en")} tokens`));
    if (node.parent !== null && byNode.get(node.parent) && node.parent !== node.node - 1) header.append(make("span", `continues node ${node.parent}`));
    header.append(make("span", node.why));
    if (!node.sampled && node.ids.length > FOLDED) {
      section.classList.add("folded");
      const button = make("button", "show", "small-button");
      button.type = "button";
      button.addEventListener("click", () => { button.textContent = section.classList.toggle("folded") ? "show" : "hide"; });
      header.append(button);
    }
    section.append(header);
    for (let from = 0; from < node.ids.length; from += CHUNK) {
      const chunk = make("div", undefined, "chunk");
      chunk.dataset.node = node.node;
      chunk.dataset.from = from;
      chunk.style.minHeight = `${Math.ceil(Math.min(CHUNK, node.ids.length - from) / 26) * 24}px`;
      section.append(chunk);
      visible.observe(chunk);
    }
    return section;
  };
  const recolour = () => {
    for (const chunk of all(".chunk", root)) {
      if (!chunk.drawn) continue;
      const node = byNode.get(Number(chunk.dataset.node));
      for (const element of chunk.children) element.className = `t ${COLOUR[by](node, Number(element.dataset.i))}`;
    }
    drawLegend();
  };

  // --- hover

  const encoder = new TextEncoder();
  const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  const bytesOf = (node, index) => {
    const exact = node.bytes[index];
    if (exact !== undefined) return exact.replace(/../g, "$& ").trim();
    return node.texts === null ? "unknown" : hex(encoder.encode(node.texts[index]));
  };
  const describe = (node, index) => {
    const logprob = at(node.logprob, index), weight = at(node.weight, index) ?? 0;
    const title = make("b", node.texts === null ? `token ${node.ids[index]}` : plain(JSON.stringify(node.texts[index])), "mono");
    return [title, tipTable([
      ["id", String(node.ids[index])], ["bytes", bytesOf(node, index)],
      ["place", `node ${node.node}, token ${index}, turn ${node.turn}`],
      ...(node.sampled ? [
        ["logprob, engine", logprob === null ? "unknown" : `${number(logprob)} (${(100 * Math.exp(logprob)).toPrecision(3)} %)`],
        ["logprob, trainer", number(at(node.trainer, index))], ["mismatch", number(mismatch(node, index))],
        ["entropy", number(at(node.entropy, index))], ["advantage", number(at(node.advantage, index))],
        ["weight version", String(at(node.version, index) ?? "unknown")],
      ] : []),
      ["weight", weight > 0 ? `${number(weight)}: trained` : "0: not trained"], ["why", node.why],
    ])];
  };
  root.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".t");
    if (!token) return;
    const node = byNode.get(Number(token.parentNode.dataset.node));
    showTip(describe(node, Number(token.dataset.i)), event.clientX, event.clientY);
  });
  root.addEventListener("pointerout", (event) => { if (event.target.closest(".t")) hideTip(); });

  // --- tree and branches

  const depth = new Map(); // how many times a node's path has left its parent's first child
  const first = new Map();
  for (const node of nodes) {
    const key = node.parent ?? -1, above = depth.get(node.parent) ?? 0;
    depth.set(node.node, first.has(key) ? above + 1 : above);
    if (!first.has(key)) first.set(key, node.node);
  }
  const entries = nodes.map((node) => {
    const link = make("a", undefined, `${node.sampled ? "sampled " : ""}in${Math.min(4, depth.get(node.node))}`);
    link.href = `#node-${node.node}`;
    link.append(make("i"), `${node.node} · turn ${node.turn}`, make("em", node.ids.length.toLocaleString("en")));
    return link;
  });
  tree.append(...entries);
  for (const [index, branch] of branches.entries()) {
    const option = make("option", `${index + 1}: ${branch.length} nodes`);
    option.value = index;
    branchOf.append(option);
  }
  const showBranch = () => {
    const kept = branchOf.value === "" ? null : new Set(branches[Number(branchOf.value)]);
    nodes.forEach((node, index) => {
      const away = kept !== null && !kept.has(node.node);
      document.getElementById(`node-${node.node}`).hidden = away;
      entries[index].classList.toggle("off", away);
    });
  };
  branchOf.addEventListener("change", showBranch);
  find("#tokenbar").addEventListener("change", (event) => {
    if (event.target.name !== "by") return;
    by = event.target.value;
    const query = new URLSearchParams(location.search);
    query.set("by", by);
    try { history.replaceState(null, "", `?${query}${location.hash}`); } catch { /* a file keeps its address */ }
    recolour();
  });
  find("#fold").addEventListener("click", () => {
    const rendered = all(".node:not(.sampled)", root), fold = rendered.some((node) => !node.classList.contains("folded"));
    rendered.forEach((node) => { node.classList.toggle("folded", fold); const button = find("button", node); if (button) button.textContent = fold ? "show" : "hide"; });
    find("#fold").textContent = fold ? "Unfold rendered" : "Fold rendered";
  });

  const wanted = new URLSearchParams(location.search).get("by");
  const radio = wanted && find(`input[name=by][value="${CSS.escape(wanted)}"]`);
  if (radio) { radio.checked = true; by = wanted; }
  for (const input of all("input[name=by]")) { // a quantity that this run did not keep cannot be shown
    const column = { mismatch: "trainer", weight: "ids" }[input.value] ?? input.value;
    input.disabled = !nodes.some((node) => node[column].some((value) => value !== null));
    if (input.disabled) input.parentNode.title += " (this run did not keep it)";
  }
  const everything = document.createDocumentFragment();
  for (const node of nodes) everything.append(drawNode(node));
  root.append(everything);
  drawLegend();
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  root.dataset.ready = "";
})();
