// The dashboard: asks the server for its JSON every two seconds, and draws it. Names come from functions, so every text
// is set as textContent; nothing is ever parsed as HTML.
"use strict";

const POLL_MS = 2000;
const MODES = ["embedded", "local", "networked", "emit", "none"];
const MODE_TEXT = {
  embedded: "embedded", local: "local buffer", networked: "networked buffer", emit: "one-way message", none: "no route",
};
const STAGES = [["plan_us", "plan"], ["code_us", "code"], ["container_us", "container"], ["ready_us", "ready"]];
const SVG = "http://www.w3.org/2000/svg";

let shown = null; // the last answer

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const child of children) made.append(child); // strings become text nodes
  return made;
}

function shape(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

const modeText = ({ mode, path }) => (path ? `${mode}/${path}` : mode);
const modeClass = (mode) => (MODES.includes(mode) ? mode : "none");

function time(us) {
  if (us === null || us === undefined) return "–";
  if (us < 1000) return `${us.toFixed(us < 10 ? 1 : 0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(unit === 0 || count >= 100 ? 0 : 1)} ${units[unit]}`;
}

const rate = (perSecond) => (perSecond >= 100 ? perSecond.toFixed(0) : perSecond.toFixed(1));
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// ---- the graph ----

const NODE = { width: 132, height: 46 };

// Columns: a function comes after its callers, as far as there is no cycle.
function layers(names, edges) {
  const depth = new Map(names.map((name) => [name, 0]));
  for (let round = 0; round < names.length; round += 1) {
    let moved = false;
    for (const { caller, callee } of edges) {
      const wanted = depth.get(caller) + 1;
      if (caller !== callee && depth.get(callee) < wanted && wanted < names.length) {
        depth.set(callee, wanted);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const used = [...new Set(depth.values())].sort((one, other) => one - other);
  return used.map((layer) => names.filter((name) => depth.get(name) === layer));
}

// Places of the nodes, and the size of the drawing. On a narrow page the layers lie below each other.
function places(rows, upright, width) {
  const most = Math.max(...rows.map((row) => row.length));
  const along = upright ? NODE.height + 78 : NODE.width + 190;
  const across = upright ? Math.max(NODE.width + 12, Math.min(220, width / most)) : NODE.height + 40;
  const at = new Map();
  rows.forEach((row, layer) => row.forEach((name, index) => {
    const main = layer * along;
    const side = (index + (most - row.length) / 2) * across;
    at.set(name, upright ? { x: side, y: main } : { x: main, y: side });
  }));
  const long = (rows.length - 1) * along;
  const wide = (most - 1) * across;
  const margin = 24;
  const size = upright
    ? { width: wide + NODE.width, height: long + NODE.height }
    : { width: long + NODE.width, height: wide + NODE.height };
  return { at, width: size.width + 2 * margin, height: size.height + 2 * margin, margin };
}

// The curve from one node to another one; `turn` keeps the curves of several modes, and of answers back, apart.
function curve(from, to, upright, turn) {
  const half = { x: NODE.width / 2, y: NODE.height / 2 };
  const centre = (place) => ({ x: place.x + half.x, y: place.y + half.y });
  const [one, other] = [centre(from), centre(to)];
  const bend = 30 * turn;
  const ahead = upright ? Math.sign(other.y - one.y) : Math.sign(other.x - one.x);
  if (ahead === 0) { // the same layer, or a call of itself
    const side = upright ? { x: half.x, y: 0 } : { x: 0, y: half.y };
    const out = 46 + Math.abs(bend);
    const start = { x: one.x + side.x, y: one.y + side.y };
    const end = { x: other.x + side.x + (upright ? 0 : 14), y: other.y + side.y + (upright ? 14 : 0) };
    const push = upright ? { x: out, y: 0 } : { x: 0, y: out };
    return { start, end, first: { x: start.x + push.x, y: start.y + push.y }, second: { x: end.x + push.x, y: end.y + push.y } };
  }
  const start = upright ? { x: one.x + bend / 2, y: one.y + ahead * half.y } : { x: one.x + ahead * half.x, y: one.y + bend / 4 };
  const end = upright ? { x: other.x + bend / 2, y: other.y - ahead * (half.y + 7) } : { x: other.x - ahead * (half.x + 7), y: other.y + bend / 4 };
  const middle = upright ? (start.y + end.y) / 2 : (start.x + end.x) / 2;
  const first = upright ? { x: start.x + bend, y: middle } : { x: middle, y: start.y + bend };
  const second = upright ? { x: end.x + bend, y: middle } : { x: middle, y: end.y + bend };
  return { start, end, first, second };
}

function drawEdge(svg, edge, line) {
  const { start, end, first, second } = line;
  const mode = modeClass(edge.mode);
  const group = shape("g", { class: mode });
  const idle = edge.calls_per_second === 0 ? " idle" : "";
  const path = `M${start.x} ${start.y} C${first.x} ${first.y} ${second.x} ${second.y} ${end.x} ${end.y}`;
  group.append(shape("path", { class: `edge ${mode}${idle}`, d: path }));
  const angle = Math.atan2(end.y - second.y, end.x - second.x) * 180 / Math.PI;
  group.append(shape("path", { class: "arrow", d: "M7 0 L-4 -5 L-4 5 Z", transform: `translate(${end.x} ${end.y}) rotate(${angle})` }));
  // The middle of the curve.
  const x = (start.x + 3 * first.x + 3 * second.x + end.x) / 8;
  const y = (start.y + 3 * first.y + 3 * second.y + end.y) / 8;
  const lines = [modeText(edge), `${rate(edge.calls_per_second)}/s · ${time(edge.p50_us)}`];
  const widest = Math.max(...lines.map((text) => text.length)) * 6.6 + 8;
  group.append(shape("rect", { class: "plate", x: x - widest / 2, y: y - 16, width: widest, height: 32, rx: 3 }));
  lines.forEach((text, index) => group.append(shape("text", { class: "label", x, y: y - 3 + 14 * index }, text)));
  group.append(shape("title", {}, `${edge.caller} → ${edge.callee}: ${edge.reason}`));
  svg.append(group);
}

function drawNode(svg, name, place, state) {
  const group = shape("g", { class: state.running ? "node" : "node stopped" });
  group.append(shape("rect", { x: place.x, y: place.y, width: NODE.width, height: NODE.height, rx: 6 }));
  group.append(shape("text", { x: place.x + 10, y: place.y + 19 }, shortened(name, 17)));
  group.append(shape("text", { class: "state", x: place.x + 10, y: place.y + 36 }, state.text));
  group.append(shape("title", {}, name));
  svg.append(group);
}

function functionState(name, functions, hostCallers) {
  const found = functions.find((it) => it.function === name.split(":")[0]);
  if (!found && hostCallers.includes(name)) return { running: true, text: "process of the host" };
  if (!found) return { running: true, text: "elsewhere" }; // of another namespace or node
  const running = found.containers.filter((it) => it.status === "RUNNING").length;
  const count = found.containers.length || (found.gauges ? found.gauges.instances : 0);
  const queue = found.gauges ? ` · queue ${found.gauges.queued}` : "";
  if (found.containers.length === 0) return { running: count > 0, text: `${count} running${queue}` };
  return { running: running > 0, text: running > 0 ? `${running} running${queue}` : found.containers[0].status.toLowerCase() };
}

function drawGraph(edges, functions, hostCallers) {
  const box = byId("graph");
  const names = [...new Set([...edges.flatMap((it) => [it.caller, it.callee]), ...functions.map((it) => it.function)])];
  if (names.length === 0) {
    box.replaceChildren(element("p", { class: "empty" }, "No function runs and no call was counted. Try: cwasi run workflows/hello/workflow.yaml"));
    return;
  }
  const width = box.clientWidth - 16;
  const upright = width < 700;
  const plan = places(layers(names, edges), upright, width);
  const svg = shape("svg", {
    width: plan.width, height: plan.height, role: "img",
    viewBox: `${-plan.margin} ${-plan.margin} ${plan.width} ${plan.height}`, "aria-label": "Graph of the calls between functions",
  });
  const seen = new Map();
  for (const edge of edges) {
    const pair = [edge.caller, edge.callee].sort().join("\n");
    const number = seen.get(pair) || 0;
    seen.set(pair, number + 1);
    const turn = number === 0 ? 0 : (number % 2 === 1 ? 1 : -1) * Math.ceil(number / 2) * 2.2;
    drawEdge(svg, edge, curve(plan.at.get(edge.caller), plan.at.get(edge.callee), upright, turn));
  }
  for (const name of names) drawNode(svg, name, plan.at.get(name), functionState(name, functions, hostCallers));
  box.replaceChildren(svg);
  // A curve or a label may reach further than the nodes do.
  const drawn = svg.getBBox();
  svg.setAttribute("viewBox", `${drawn.x - 8} ${drawn.y - 8} ${drawn.width + 16} ${drawn.height + 16}`);
  svg.setAttribute("width", drawn.width + 16);
  svg.setAttribute("height", drawn.height + 16);
}

// ---- the tables ----

const cell = (text, kind = "") => element("td", { class: kind }, String(text));

function drawEdges(edges) {
  const rows = edges.map((edge) => {
    const kinds = Object.entries(edge.error_kinds).map(([kind, count]) => `${count} ${kind}`).join(", ");
    const mode = cell(modeText(edge), `mode ${modeClass(edge.mode)}`);
    mode.title = MODE_TEXT[edge.mode] || "";
    return element("tr", {},
      cell(`${edge.caller} → ${edge.callee}`), mode, cell(rate(edge.calls_per_second), "n"),
      cell(bytes(edge.bytes_per_second), "n"), cell(time(edge.p50_us), "n"), cell(time(edge.p99_us), "n"),
      cell(edge.calls, "n"), cell(edge.errors === 0 ? "0" : kinds, edge.errors === 0 ? "n" : "n failed"),
      cell(edge.reason, "wraps"));
  });
  byId("edges").tBodies[0].replaceChildren(...(rows.length ? rows : [emptyRow(9, "no calls yet")]));
}

const emptyRow = (columns, text) => element("tr", {}, element("td", { colspan: columns, class: "empty" }, text));

function stagesCell(stages) {
  const box = element("td", {});
  if (!stages) { box.append("–"); return box; }
  const parts = STAGES.map(([key, name]) => [name, stages[key] || 0]);
  const total = parts.reduce((sum, [, us]) => sum + us, 0) || 1;
  const bar = element("div", { class: "stages", role: "presentation" });
  for (const [name, us] of parts) {
    const part = element("span", { title: `${name} ${time(us)}` });
    part.style.flex = `${us / total} 0 0`;
    bar.append(part);
  }
  const texts = parts.map(([name, us]) => `${name === "code" && stages.code ? stages.code : name} ${time(us)}`);
  if (stages.run_us !== null && stages.run_us !== undefined) texts.push(`ran ${time(stages.run_us)}, exit ${stages.exit}`);
  box.append(bar, element("small", {}, texts.join(" · ")));
  return box;
}

function drawFunctions(functions) {
  const rows = functions.flatMap((it) => {
    const gauges = it.gauges;
    const figures = gauges
      ? [cell(`${gauges.busy} / ${gauges.workers}`, "n"), cell(gauges.queued, "n"), cell(gauges.refused, gauges.refused ? "n failed" : "n")]
      : [cell("–", "n"), cell("–", "n"), cell("–", "n")];
    if (it.containers.length === 0) {
      const count = gauges ? gauges.instances : 0;
      return [element("tr", {}, cell(it.function), cell(`${count} running`), ...figures, cell("–", "n"), stagesCell(null))];
    }
    return it.containers.map((container, index) => {
      const stages = container.stages;
      const done = stages && stages.ready_us !== null;
      const init = done ? STAGES.reduce((sum, [key]) => sum + (stages[key] || 0), 0) : null;
      const own = index === 0 ? figures : [cell(""), cell(""), cell("")];
      return element("tr", {}, cell(container.id), cell(container.status.toLowerCase()), ...own, cell(time(init), "n"), stagesCell(stages));
    });
  });
  byId("functions").tBodies[0].replaceChildren(...(rows.length ? rows : [emptyRow(7, "no functions")]));
}

// ---- the page ----

// The address has the token behind its #, which browsers send to no server.
async function ask(path) {
  const headers = { accept: "application/json", authorization: `Bearer ${location.hash.slice(1)}` };
  const response = await fetch(path, { headers });
  if (response.status === 401) throw new Error((await response.text()).trim());
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

function chooseWorkflow(state) {
  const select = byId("workflow");
  const isHost = (it) => state.host_callers.includes(it.caller);
  const members = [...state.edges.filter((it) => !isHost(it)), ...state.functions];
  const names = [...new Set(members.map((it) => it.workflow))].sort();
  if (select.dataset.names !== JSON.stringify(names)) {
    const chosen = select.dataset.names === undefined ? "*" : select.value;
    select.replaceChildren(element("option", { value: "*" }, "all"), ...names.map((name) => element("option", { value: name }, name || "none")));
    select.value = names.includes(chosen) ? chosen : "*";
    select.dataset.names = JSON.stringify(names);
  }
  const of = select.value;
  // A process of the host belongs to no workflow: its calls are shown with the functions that it calls.
  const own = new Set(state.functions.filter((it) => it.workflow === of).map((it) => it.function));
  return (it) => of === "*" || (isHost(it) ? own.has(it.callee) : it.workflow === of);
}

function draw(state) {
  byId("place").textContent = `${state.node} · namespace ${state.namespace}`;
  const notes = byId("notes");
  notes.replaceChildren(...state.notes.map((text) => element("li", {}, text)));
  notes.hidden = state.notes.length === 0;
  const wanted = chooseWorkflow(state);
  const edges = state.edges.filter(wanted);
  const functions = state.functions.filter(wanted);
  drawGraph(edges, functions, state.host_callers);
  drawEdges(edges);
  drawFunctions(functions);
}

function drawLegend() {
  byId("legend").replaceChildren(...MODES.map((mode) => {
    const line = shape("svg", { viewBox: "0 0 34 10", class: mode, "aria-hidden": "true" });
    line.append(shape("path", { class: `edge ${mode}`, d: "M1 5 H33" }));
    return element("li", {}, line, MODE_TEXT[mode]);
  }));
}

// A screen reader says what is wrong, and not the time every two seconds.
function sayFresh(live, text) {
  const fresh = byId("fresh");
  fresh.setAttribute("aria-live", live);
  if (fresh.textContent !== text) fresh.textContent = text;
}

async function refresh() {
  try {
    shown = await ask("/api/state");
    draw(shown);
    drawRuns(await ask("/api/traces"));
    sayFresh("off", `as of ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    sayFresh("polite", `not up to date: ${error.message}`);
  }
  setTimeout(refresh, POLL_MS);
}

drawLegend();
byId("workflow").addEventListener("change", () => { if (shown) draw(shown); });
refresh();
