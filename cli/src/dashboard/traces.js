// Waterfalls of recent runs and calls. The newest one whose spans have arrived is open until a person chooses one. An
// open one is drawn again when it has more spans. As in app.js, names come from functions, and every text is set as
// textContent.
"use strict";

let chosenRun = null; // the id of the trace whose waterfall a person opened
let openRun = null; // the id of the trace whose waterfall is on the page
let openState = ""; // how many spans it had, and whether it expected more
let knownTraces = []; // of the last answer

function drawRuns(traces) {
  const box = byId("runs");
  if (traces.length === 0) {
    box.replaceChildren(element("p", { class: "empty" },
      "No trace is kept. cwasi run and cwasi invoke --trace record one; [traces] sample in the node's configuration records others."));
    byId("waterfall").replaceChildren();
    openRun = null;
    return;
  }
  const newest = traces.find((trace) => trace.settled) || traces[0];
  const open = chosenRun === null ? newest : traces.find((trace) => trace.id === chosenRun);
  if (open && (open.id !== openRun || stateOf(open) !== openState)) showTrace(open);
  const focused = document.activeElement && document.activeElement.dataset.trace;
  knownTraces = traces;
  const text = byId("filter").value.trim().toLowerCase();
  const wanted = traces.filter((trace) => `${trace.title} ${trace.id} ${trace.errors > 0 ? "failed" : ""}`.toLowerCase().includes(text));
  const buttons = wanted.map((trace) => runButton(trace, traces));
  box.replaceChildren(...(buttons.length ? buttons : [element("p", { class: "empty" }, "None of the newest traces has this text.")]));
  const again = buttons.find((button) => button.dataset.trace === focused);
  if (again) again.focus({ preventScroll: true });
}

// app.js, which has byId, comes later.
document.getElementById("filter").addEventListener("input", () => drawRuns(knownTraces));

const stateOf = (trace) => `${trace.spans} ${trace.settled}`;

function runButton(trace, traces) {
  const about = `${trace.spans} spans${trace.settled ? "" : ", more arrive"} · ${time(trace.duration_us)}`;
  const button = element("button", { type: "button", "aria-pressed": String(trace.id === openRun), title: trace.id },
    element("span", {}, trace.title),
    element("small", {}, new Date(trace.began_unix_ms).toLocaleTimeString(), " · ", about));
  button.dataset.trace = trace.id;
  if (trace.errors > 0) button.append(element("small", { class: "failed" }, `${trace.errors} failed`));
  button.addEventListener("click", () => {
    chosenRun = trace.id;
    drawRuns(traces);
  });
  return button;
}

// Opens the waterfall of a trace. Of two answers that cross, that to the later click counts.
async function showTrace(wanted) {
  const id = wanted.id;
  openRun = id;
  openState = stateOf(wanted);
  const box = byId("waterfall");
  let shownNow;
  try {
    const trace = await ask(`/api/traces/${encodeURIComponent(id)}`);
    shownNow = [waterfallHead(trace), ...trace.rows.map(waterfallRow)];
    if (!trace.settled) shownNow.push(element("p", { class: "empty" }, "More spans arrive."));
    if (trace.rows.length < trace.spans) {
      shownNow.push(element("p", { class: "empty" }, `${trace.spans - trace.rows.length} more spans: cwasi trace ${id}`));
    }
  } catch (error) {
    shownNow = [element("p", { class: "empty" }, `This trace is not among the newest ones any more (${error.message}). Try cwasi trace ${id}`)];
  }
  if (openRun === id) box.replaceChildren(...shownNow);
}

function waterfallHead(trace) {
  const ends = element("span", { class: "track ends" }, element("span", {}, "0"), element("span", {}, time(trace.duration_us)));
  return element("div", { class: "span head" }, element("span", { class: "name" }, trace.id.slice(0, 8)), ends, element("span", {}));
}

// A part of a track: the span itself, or one of its phases.
function trackPart(kind, { offset, share }) {
  const part = element("span", { class: kind });
  part.style.left = `${100 * offset}%`;
  part.style.width = `${100 * share}%`;
  return part;
}

// A line that opens to what else the span says: by a click, a touch, or the keyboard.
function waterfallRow(span) {
  const name = element("span", { class: "name", title: span.title }, `${span.orphan ? "… " : ""}${span.title}`);
  name.style.paddingLeft = `${Math.min(span.depth, 8) * 0.8}rem`;
  const track = element("span", { class: "track", "aria-hidden": "true" }, trackPart(`bar${span.server ? " server" : ""}${span.run ? " run-bar" : ""}`, span));
  for (const phase of span.phases) track.append(trackPart(`phase ${phase.kind}`, phase));
  const line = element("summary", {}, name, track, element("span", { class: "n" }, span.error || time(span.duration_us)));
  const facts = element("dl");
  for (const [term, text] of span.facts) facts.append(element("dt", {}, term), element("dd", {}, text));
  const mode = span.mode ? modeClass(span.mode) : "";
  return element("details", { class: `span ${mode}${span.error ? " failed" : ""}` }, line, facts);
}
