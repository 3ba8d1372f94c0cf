// The selection: the text about it, and its change by pointer, keyboard and button.

function element(text, tag = "span", name = "") {
  const found = document.createElement(tag);
  found.textContent = text;
  if (name) found.className = name;
  return found;
}

function rankSet(ranks) {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const first = sorted.filter((rank, i) => sorted[i - 1] !== rank - 1);
  const last = sorted.filter((rank, i) => sorted[i + 1] !== rank + 1);
  const span = (a, b) => (a === b ? `${a}` : `${a}${b === a + 1 ? "," : "-"}${b}`);
  const text = first.map((rank, i) => span(rank, last[i])).join(",");
  return `${ranks.length === 1 ? "rank" : "ranks"} ${text}`;
}

function select(rank, operation = null) {
  view.selected = rank === null ? null : { rank, operation };
  selectionText.replaceChildren(...(rank === null ? [] : describe(rank, operation)));
  for (const [index, row] of [...names.children].entries())
    row.classList.toggle("is-selected", lanes[index].rank === rank);
  redraw();
}

function describe(rank, operation) {
  if (!operation) return describeLane(rank);
  const name = `${operation.kind.name}${operation.sequence ? ` #${operation.sequence}` : ""}`;
  const first = element("", "p");
  first.append(element(name, "b"), ` ${operation.kind.of} `, element(operation.place, "code", "place"));
  if (operation.detail) first.append(" ", element(operation.detail, "span", "quiet"));
  const found = [first, element(describeSpan(rank, operation), "p")];
  const meeting = describeMeeting(operation);
  return meeting ? [...found, element(meeting, "p", "quiet")] : found;
}

function describeSpan(rank, operation) {
  const about = operation.kind.peer === null ? "" : ` with rank ${operation.kind.peer}`;
  if (operation.end === Infinity) {
    const names = waits.get(rank);
    const whom = names ? `, waits for ${names}` : "";
    return `rank ${rank} entered it at ${timestamp(operation.begin)}${about} and never left it${whom}.`;
  }
  const failed = operation.failed ? ", and left it by an exception" : "";
  return `rank ${rank} entered it at ${timestamp(operation.begin)}${about} for ${seconds(operation.end - operation.begin)}${failed}.`;
}

function describeMeeting(operation) {
  const met = key(operation) && meetings.get(key(operation));
  if (!met) return "";
  const ranks = met.map((each) => each.rank);
  const missing = operation.kind.group.filter((rank) => !ranks.includes(rank));
  const begins = met.map((each) => each.begin);
  const spread = Math.max(...begins) - Math.min(...begins);
  const sentence = `Entered by ${rankSet(ranks)}${ranks.length > 1 ? ` within ${seconds(spread)}` : ""}`;
  const different = met.filter((each) => each.kind.name !== operation.kind.name);
  if (different.length) {
    const who = rankSet(different.map((each) => each.rank));
    return `${sentence}, by ${who} as ${different[0].kind.name}.`;
  }
  if (missing.length) return `${sentence}; not by ${rankSet(missing)}.`;
  return `${sentence}${ranks.length > 1 ? `, rank ${ranks[begins.indexOf(Math.max(...begins))]} last` : ""}.`;
}

function describeLane(rank) {
  const lane = lanes[laneOf.get(rank)];
  const found = element("", "p");
  found.append(element(`rank ${rank}`, "b"), ` ${lane.text} `);
  const isHere = ([us, of, sort]) => of === rank && sort !== "point";
  const faults = data.faults.map(([of, us, , kind, text]) => [us, of, kind, text]);
  const events = [...data.marks.filter(isHere), ...faults.filter(isHere)].map(
    ([us, , , text]) => `${text} at ${timestamp(us)}`,
  );
  const count = `${lane.operations.length} operation${lane.operations.length === 1 ? "" : "s"}`;
  return [found, element([count, ...events].join(" · "), "p", "quiet")];
}

// Keyboard

function selectNeighbour(by) {
  const { rank, operation } = view.selected || { rank: lanes[0].rank, operation: null };
  const all = lanes[laneOf.get(rank)].operations;
  if (!all.length) return select(rank);
  const at = operation ? all.indexOf(operation) : by > 0 ? -1 : all.length;
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  select(rank, next);
  const begin = axisPosition(next.begin),
    span = view.to - view.from;
  if (begin < view.from || begin > view.to) moveTo(begin - span / 2, begin + span / 2);
}

function selectLane(by) {
  const index = view.selected ? laneOf.get(view.selected.rank) + by : 0;
  select(lanes[Math.min(lanes.length - 1, Math.max(0, index))].rank);
}

const ZOOMS = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  all: () => moveTo(0, 1),
  end: () => {
    const last = axisPosition(data.progress ?? data.end);
    moveTo(Math.max(0, last - 0.04), Math.min(1, last + 0.04));
  },
};
const KEYS = {
  ArrowRight: () => selectNeighbour(1),
  ArrowLeft: () => selectNeighbour(-1),
  ArrowDown: () => selectLane(1),
  ArrowUp: () => selectLane(-1),
  "+": ZOOMS.in,
  "=": ZOOMS.in,
  "-": ZOOMS.out,
  0: ZOOMS.all,
  Home: ZOOMS.all,
  End: ZOOMS.end,
  Escape: () => select(null),
};

box.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});

// Zoom: a part of the axis, from 0 to 1

function moveTo(from, to) {
  const span = Math.min(1, Math.max(MIN_SPAN, to - from));
  view.from = Math.min(1 - span, Math.max(0, from));
  view.to = view.from + span;
  redraw();
}

function zoom(factor, at = null) {
  const selected = view.selected && view.selected.operation;
  const begin = selected ? axisPosition(selected.begin) : null;
  const isSeen = begin !== null && begin >= view.from && begin <= view.to;
  const center = at ?? (isSeen ? begin : (view.from + view.to) / 2);
  moveTo(center - (center - view.from) * factor, center + (view.to - center) * factor);
}

for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", ZOOMS[button.dataset.zoom]);
}

// Pointer

function pointed(event) {
  const area = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - area.left, event.clientY - area.top];
  const lane = lanes[Math.floor((y - TOP) / height)];
  if (!lane) return { x, lane: null, operation: null };
  const near = lane.operations.filter((each) => {
    const { top, tall } = bar(each, yOf(laneOf.get(lane.rank)));
    return (
      x >= xOf(each.begin) - 3 &&
      x <= xOf(endOf(each)) + 3 &&
      (each.rows === 1 || (y >= top - 1 && y <= top + tall + 1))
    );
  });
  const distance = (each) =>
    Math.abs((xOf(each.begin) + xOf(Math.min(each.end, lane.end))) / 2 - x);
  near.sort((a, b) => distance(a) - distance(b));
  return { x, lane, operation: near[0] || null };
}

canvas.addEventListener("pointerdown", (event) => {
  if (event.button === 0) view.drag = { from: pointed(event).x, to: pointed(event).x };
});
canvas.addEventListener("pointermove", (event) => {
  const { x, operation } = pointed(event);
  canvas.style.cursor = operation ? "pointer" : "default";
  if (!view.drag || event.pointerType === "touch") return;
  view.drag.to = x;
  redraw();
});
addEventListener("pointerup", (event) => {
  const drag = view.drag;
  view.drag = null;
  if (!drag || (event.target !== canvas && Math.abs(drag.to - drag.from) < 8)) return;
  if (Math.abs(drag.to - drag.from) >= 8) {
    const ends = [drag.from, drag.to].map(positionAt);
    return moveTo(Math.min(...ends), Math.max(...ends));
  }
  const { lane, operation } = pointed(event);
  if (lane) select(lane.rank, operation);
});
addEventListener("pointercancel", () => {
  view.drag = null;
});
canvas.addEventListener(
  "wheel",
  (event) => {
    const { x } = pointed(event);
    const at = positionAt(x);
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, at);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const by = (event.deltaX / plotWidth()) * (view.to - view.from);
      moveTo(view.from + by, view.to + by);
    } else return;
    event.preventDefault();
  },
  { passive: false },
);
names.addEventListener("click", (event) => {
  const index = [...names.children].indexOf(event.target.closest(".names > div"));
  if (index >= 0) select(lanes[index].rank);
});

// Begin

names.classList.toggle("dense", height < 20);
for (const lane of lanes) {
  const row = element("", "div", lane.role);
  row.style.height = `${height}px`;
  row.append(element(`rank ${lane.rank}`), element(lane.state, "span", "state quiet"));
  names.append(row);
}

function selectFirst() {
  const about = data.selected;
  const isIt = (o) =>
    about &&
    o.kind.name === about.name &&
    o.sequence === about.sequence &&
    String(o.kind.group) === String(about.group);
  for (const lane of lanes.filter((each) => each.role === "waiting")) {
    const found = lane.operations.find((each) => isIt(each) && each.end === Infinity);
    if (found) return select(lane.rank, found);
  }
  if (lanes.length) select(lanes[0].rank);
}

readColors();
selectFirst();
draw();
performance.mark("lanes drawn");
new ResizeObserver(redraw).observe(canvas.parentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColors();
  redraw();
});
