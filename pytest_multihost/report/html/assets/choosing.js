// What is chosen, what is said of it, and how: by pointer, by keyboard, by button.

function part(words, tag = "span", name = "") {
  const found = document.createElement(tag);
  found.textContent = words;
  if (name) found.className = name;
  return found;
}

function rankSet(ranks) {
  const spans = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    const last = spans[spans.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  const words = spans
    .map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a},${b}` : `${a}-${b}`))
    .join(",");
  return `${ranks.length === 1 ? "rank" : "ranks"} ${words}`;
}

function choose(rank, operation = null) {
  view.chosen = rank === null ? null : { rank, operation };
  chosenText.replaceChildren(...(rank === null ? [] : describe(rank, operation)));
  for (const [index, row] of [...names.children].entries())
    row.classList.toggle("is-chosen", lanes[index].rank === rank);
  redraw();
}

function describe(rank, operation) {
  if (!operation) return describeRank(rank);
  const found = [];
  const name = `${operation.kind.name}${operation.sequence ? ` #${operation.sequence}` : ""}`;
  const first = part("", "p");
  first.append(part(name, "b"), ` ${operation.kind.of} `, part(operation.place, "code", "at"));
  if (operation.detail) first.append(" ", part(operation.detail, "span", "quiet"));
  found.push(first, part(spanOf(rank, operation), "p"));
  const meeting = meetingOf(operation);
  if (meeting) found.push(part(meeting, "p", "quiet"));
  return found;
}

function spanOf(rank, operation) {
  const about = operation.kind.peer === null ? "" : ` with rank ${operation.kind.peer}`;
  if (operation.end === Infinity) {
    const wait = waits.get(rank);
    const whom = wait && wait.words ? `, waits for ${wait.words}` : "";
    return `rank ${rank} entered it at ${moment(operation.begin)}${about} and never left it${whom}.`;
  }
  const failed = operation.failed ? ", and left it by an exception" : "";
  return `rank ${rank} entered it at ${moment(operation.begin)}${about} for ${seconds(operation.end - operation.begin)}${failed}.`;
}

function meetingOf(operation) {
  const met = key(operation) && meetings.get(key(operation));
  if (!met) return "";
  const ranks = met.map((each) => each.rank);
  const missing = operation.kind.group.filter((rank) => !ranks.includes(rank));
  const begins = met.map((each) => each.begin);
  const spread = Math.max(...begins) - Math.min(...begins);
  const words = `Entered by ${rankSet(ranks)}${ranks.length > 1 ? ` within ${seconds(spread)}` : ""}`;
  const latest = met.find((each) => each.begin === Math.max(...begins));
  const different = met.filter((each) => each.kind.name !== operation.kind.name);
  if (different.length) {
    const who = rankSet(different.map((each) => each.rank));
    return `${words}, by ${who} as ${different[0].kind.name}.`;
  }
  if (missing.length) return `${words}; not by ${rankSet(missing)}.`;
  return `${words}${ranks.length > 1 ? `, rank ${latest.rank} last` : ""}.`;
}

function describeRank(rank) {
  const lane = lanes[laneOf.get(rank)];
  const found = part("", "p");
  found.append(part(`rank ${rank}`, "b"), ` ${lane.words} `);
  const told = [
    ...data.marks
      .filter((mark) => mark[1] === rank && mark[2] !== "point")
      .map(([us, , , words]) => `${words} at ${moment(us)}`),
    ...data.faults
      .filter((fault) => fault[0] === rank)
      .map(([, us, , , words]) => `${words} at ${moment(us)}`),
  ];
  const count = `${lane.operations.length} operation${lane.operations.length === 1 ? "" : "s"}`;
  return [found, part([count, ...told].join(" · "), "p", "quiet")];
}

// Keyboard

function step(by) {
  const { rank, operation } = view.chosen || { rank: lanes[0].rank, operation: null };
  const all = lanes[laneOf.get(rank)].operations;
  if (!all.length) return choose(rank);
  const at = operation ? all.indexOf(operation) : by > 0 ? -1 : all.length;
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  choose(rank, next);
  bringIntoView(next);
}

function climb(by) {
  const index = view.chosen ? laneOf.get(view.chosen.rank) + by : 0;
  choose(lanes[Math.min(lanes.length - 1, Math.max(0, index))].rank);
}

function bringIntoView(operation) {
  const begin = share(operation.begin),
    span = view.to - view.from;
  if (begin < view.from || begin > view.to) moveTo(begin - span / 2, begin + span / 2);
}

const KEYS = {
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  ArrowDown: () => climb(1),
  ArrowUp: () => climb(-1),
  "+": () => zoom(0.5),
  "=": () => zoom(0.5),
  "-": () => zoom(2),
  0: () => moveTo(0, 1),
  Home: () => moveTo(0, 1),
  End: () => ZOOMS.end(),
  Escape: () => choose(null),
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
  const chosen = view.chosen && view.chosen.operation;
  const begin = chosen ? share(chosen.begin) : null;
  const isSeen = begin !== null && begin >= view.from && begin <= view.to;
  const center = at ?? (isSeen ? begin : (view.from + view.to) / 2);
  moveTo(center - (center - view.from) * factor, center + (view.to - center) * factor);
}

const ZOOMS = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  all: () => moveTo(0, 1),
  end: () => {
    const last = share(data.progress ?? data.end);
    moveTo(Math.max(0, last - 0.04), Math.min(1, last + 0.04));
  },
};
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", ZOOMS[button.dataset.zoom]);
}

// Pointer

function pointed(event) {
  const area = canvas.getBoundingClientRect();
  const x = event.clientX - area.left,
    y = event.clientY - area.top;
  const lane = lanes[Math.floor((y - TOP) / height)];
  if (!lane) return { x, lane: null, operation: null };
  const near = lane.operations.filter((each) => {
    const { top, tall } = bar(each, yOf(laneOf.get(lane.rank)));
    return (
      x >= xOf(each.begin) - 3 &&
      x <= xOf(each.end === Infinity ? lane.end : each.end) + 3 &&
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
    const at = (x) => view.from + ((x - PAD) / plotWidth()) * (view.to - view.from);
    return moveTo(at(Math.min(drag.from, drag.to)), at(Math.max(drag.from, drag.to)));
  }
  const { lane, operation } = pointed(event);
  if (lane) choose(lane.rank, operation);
});
addEventListener("pointercancel", () => {
  view.drag = null;
});
canvas.addEventListener(
  "wheel",
  (event) => {
    const { x } = pointed(event);
    const at = view.from + ((x - PAD) / plotWidth()) * (view.to - view.from);
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
  if (index >= 0) choose(lanes[index].rank);
});

// Begin

function writeNames() {
  names.classList.toggle("dense", height < 20);
  names.replaceChildren(
    ...lanes.map((lane) => {
      const row = part("", "div", lane.role);
      row.style.height = `${height}px`;
      row.append(part(`rank ${lane.rank}`), part(lane.state, "span", "state quiet"));
      return row;
    }),
  );
}

function chooseFirst() {
  const about = data.chosen;
  const isIt = (o) =>
    about &&
    o.kind.name === about.name &&
    o.sequence === about.sequence &&
    String(o.kind.group) === String(about.group);
  for (const lane of lanes.filter((each) => each.role === "waiting")) {
    const found = lane.operations.find((each) => isIt(each) && each.end === Infinity);
    if (found) return choose(lane.rank, found);
  }
  if (lanes.length) choose(lanes[0].rank);
}

readColors();
writeNames();
chooseFirst();
draw();
performance.mark("lanes drawn");
new ResizeObserver(redraw).observe(canvas.parentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColors();
  redraw();
});
