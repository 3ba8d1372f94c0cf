// How the lanes are drawn.

const COLORS =
  "card ink quiet line soft culprit culprit-soft culprit-line wait wait-soft wait-line op op-ink fault";
const colors = {};
function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of COLORS.split(" ")) colors[name] = style.getPropertyValue(`--${name}`).trim();
  colors.sans = getComputedStyle(document.body).fontFamily;
}

let context;
function draw() {
  const ratio = devicePixelRatio || 1;
  view.width = canvas.clientWidth;
  const full = TOP + lanes.length * height + 8;
  canvas.style.height = `${full}px`;
  canvas.width = Math.round(view.width * ratio);
  canvas.height = Math.round(full * ratio);
  context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.textBaseline = "middle";
  context.save();
  context.beginPath();
  context.rect(PAD - 1, 0, plotWidth() + 2, full);
  context.clip();
  drawAxis(full);
  lanes.forEach(drawLane);
  drawMeeting();
  for (const us of [data.progress, data.judged].filter((each) => each !== null)) {
    const x = Math.min(xOf(us), PAD + plotWidth() - 0.5);
    drawLine(x, TOP - 6, x, full, colors.culprit, 1, [2, 3]);
  }
  drawMarks();
  context.restore();
  drawWaits();
  const { from, to } = view.drag || { from: 0, to: 0 };
  if (Math.abs(to - from) >= 4)
    fillRect(Math.min(from, to), 0, Math.abs(to - from), full, colors.wait, 0.18);
}

function drawText(label, x, y, color, { size = 11, weight = 400, align = "left", max = Infinity } = {}) {
  context.font = `${weight} ${size}px ${colors.sans}`;
  let shown = label;
  if (max < Infinity && context.measureText(shown).width > max) {
    if (max < size * 2) return;
    let low = 0,
      high = label.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${label.slice(0, middle)}…`).width <= max) low = middle;
      else high = middle - 1;
    }
    if (low < 2) return;
    shown = `${label.slice(0, low)}…`;
  }
  context.textAlign = align;
  context.fillStyle = color;
  context.fillText(shown, x, y);
}

function fillRect(x, y, width, height, color, alpha = 1) {
  context.globalAlpha = alpha;
  context.fillStyle = color;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
}

function fillCircle(x, y, radius, color) {
  context.fillStyle = color;
  context.beginPath();
  context.arc(x, y, radius, 0, 7);
  context.fill();
}

function fillPolygon(color, ...points) {
  context.fillStyle = color;
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.fill();
}

function drawLine(x1, y1, x2, y2, color, width = 1, dash = []) {
  context.strokeStyle = color;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
  context.setLineDash([]);
}

function drawAxis(full) {
  for (const [begin, end, left, right, isSilence] of data.axis) {
    const x1 = toX(left),
      x2 = toX(right);
    if (x2 < 0 || x1 > view.width) continue;
    if (isSilence) drawSilence(begin, end, x1, x2, full);
    else drawTicks(begin, end, x1, x2, full);
  }
  drawLine(PAD, TOP - 0.5, view.width, TOP - 0.5, colors.line);
}

function drawSilence(begin, end, x1, x2, full) {
  fillRect(x1, 0, x2 - x1, full, colors.soft);
  const length = seconds(end - begin);
  const label = data.go !== null && end <= data.go ? `start-up, ${length}` : `${length} of silence`;
  const middle = (Math.max(x1, PAD) + Math.min(x2, PAD + plotWidth())) / 2;
  drawText(label, middle, TOP / 2, colors.quiet, { align: "center", max: x2 - x1 - 10 });
}

function drawTicks(begin, end, x1, x2, full) {
  const perPixel = (end - begin) / Math.max(1, x2 - x1);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, perPixel * 90)));
  const step = power * ([1, 2, 5, 10].find((each) => each * power >= perPixel * 90) || 10);
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e6) - 1e-9));
  const first = Math.ceil(Math.max(begin, begin + (PAD - x1) * perPixel) / step) * step;
  for (let us = first; us < end; us += step) {
    const x = x1 + (us - begin) / perPixel;
    if (x > PAD + plotWidth()) break;
    drawLine(x, TOP, x, full, colors.line);
    if (x2 - x > 34) drawText(`+${(us / 1e6).toFixed(digits)} s`, x + 3, TOP / 2, colors.quiet);
  }
}

function drawLane(lane, index) {
  const y = yOf(index);
  if (view.selected && view.selected.rank === lane.rank)
    fillRect(PAD, y, plotWidth(), height, colors.soft, 0.5);
  if (index) drawLine(PAD, y - 0.5, view.width - gutter, y - 0.5, colors.line);
  if (data.go !== null) drawStartup(lane, y);
  if (lane.role === "culprit") drawLateness(lane, y);
  let drawnTo = -Infinity,
    drawnRow = -1;
  for (const each of lane.operations) {
    const x1 = xOf(each.begin),
      x2 = xOf(endOf(each));
    if (x2 < PAD || x1 > PAD + plotWidth()) continue;
    if (x2 - drawnTo < 0.4 && each.row === drawnRow && each.end !== Infinity) continue;
    drawOperation(each, lane, x1, x2, y);
    drawnTo = x2;
    drawnRow = each.row;
  }
}

function drawStartup(lane, y) {
  const until = xOf(lane.ready === null ? data.end : lane.ready);
  fillRect(PAD, y + height / 2 - 1, Math.max(0, until - PAD), 2, colors.line, 0.55);
  const first = lane.operations.length ? xOf(lane.operations[0].begin) : Infinity;
  const room = Math.min(until, first) - toX(0);
  if (height > 30 && view.from === 0 && room > 52)
    drawText("start-up", toX(0) + 4, y + height / 2 - 7, colors.quiet, { size: 9 });
}

function drawLateness(lane, y) {
  if (lane.operations.some((each) => each.end === Infinity && each.waited !== null)) return;
  const ends = lane.operations.map((each) => each.end).filter((end) => end !== Infinity);
  const last = Math.max(0, ...ends, data.go || 0);
  const x1 = Math.max(PAD, xOf(last)),
    x2 = xOf(lane.end);
  if (x2 - x1 < 2) return;
  const [fill, line] = [colors["culprit-soft"], colors["culprit-line"]];
  drawBox(x1 + 1, y + inset - 1, x2 - x1 - 1, height - 2 * inset + 2, fill, line);
  const style = { size: height > 20 ? 12 : 11, weight: 600, max: x2 - x1 - 14 };
  drawText(lane.text, x1 + 8, y + height / 2, colors.culprit, style);
}

function drawBox(x, y, w, h, fill, stroke, width = 1) {
  context.beginPath();
  context.roundRect(x, y, Math.max(w, 1), h, Math.min(3, w / 2));
  context.fillStyle = fill || "transparent";
  context.fill();
  context.strokeStyle = stroke || "transparent";
  context.lineWidth = width;
  context.stroke();
}

function bar(each, y) {
  const inner = (height - 2 * inset) / each.rows;
  return { top: y + inset + each.row * inner, tall: Math.max(2, inner - (each.rows > 1 ? 1 : 0)) };
}

function drawOperation(each, lane, x1, x2, y) {
  const { top, tall } = bar(each, y);
  const isOpen = each.end === Infinity,
    isLate = lane.role === "culprit";
  const wide = Math.max(x2 - x1, isOpen ? 3 : 1.5);
  const left = Math.max(x1, PAD - 4);
  const width = Math.min(x1 + wide, PAD + plotWidth() + 4) - left;
  if (isOpen) {
    const [fill, line] = isLate ? ["culprit-soft", "culprit"] : ["wait-soft", "wait-line"];
    drawBox(left + 0.5, top + 0.5, width - 1, tall - 1, colors[fill], colors[line]);
  } else if (width < 3)
    fillRect(left, top, Math.max(1, width), tall, each.failed ? colors.culprit : colors.op);
  else drawBox(left, top, width - (width > 4 ? 1 : 0), tall, colors.op, each.failed && colors.culprit);
  if (width < 22 || tall < 8) return;
  const size = tall > 14 ? 12 : 10,
    weight = isOpen ? 600 : 400;
  const name = each.kind.name + (each.sequence ? ` #${each.sequence}` : "");
  const awaited = isOpen && waits.get(each.rank);
  const all = [...(awaited ? [`${name}, waits for ${awaited}`] : []), name]; // the longest first
  const label =
    all.find((each) => fits(each, width - 10, size, weight)) ||
    (width > 64 ? all[all.length - 1] : each.sequence ? `#${each.sequence}` : "");
  const color = isOpen ? colors[isLate ? "culprit" : "wait"] : colors["op-ink"];
  drawText(label, left + 5, top + tall / 2 + 0.5, color, { size, weight, max: width - 8 });
}

const widths = new Map();
function fits(label, max, size, weight) {
  const key = `${weight}/${size}/${label}`;
  if (!widths.has(key)) {
    context.font = `${weight} ${size}px ${colors.sans}`;
    widths.set(key, context.measureText(label).width);
  }
  return widths.get(key) <= max;
}

function drawMarks() {
  for (const [us, rank, sort] of data.marks) {
    const y = yOf(laneOf.get(rank)) + height / 2,
      x = xOf(us);
    if (x < PAD - 8 || x > view.width) continue;
    const bad = { raised: colors.culprit, died: colors.culprit, killed: colors.fault }[sort];
    if (sort === "point") drawLine(x, y - height / 2 + 2, x, y + height / 2 - 2, colors.quiet, 1.5);
    else if (bad) {
      // Below the middle, where the label of the bar is.
      const low = y + height / 2 - 6;
      fillCircle(x, low, 6, colors.card);
      drawLine(x - 3.5, low - 3.5, x + 3.5, low + 3.5, bad, 2.5);
      drawLine(x - 3.5, low + 3.5, x + 3.5, low - 3.5, bad, 2.5);
    } else drawLine(x, y - 6, x, y + 6, colors.quiet, 2);
  }
  for (const [rank, from, until] of data.faults) {
    const lane = lanes[laneOf.get(rank)];
    const y = yOf(laneOf.get(rank)) + height - 4,
      x1 = xOf(from),
      x2 = xOf(until === OPEN ? lane.end : until);
    if (x2 - x1 > 2) drawLine(x1, y, x2, y, colors.fault, 2);
    fillPolygon(colors.fault, [x1, y - 5], [x1 + 5, y], [x1, y + 5], [x1 - 5, y]);
  }
}

function drawMeeting() {
  const selected = view.selected && view.selected.operation;
  if (!selected) return;
  for (const each of meetings.get(key(selected)) || [selected]) {
    const { top, tall } = bar(each, yOf(laneOf.get(each.rank)));
    const x1 = xOf(each.begin),
      x2 = Math.max(xOf(endOf(each)), x1 + 3);
    const style = each === selected ? [colors.ink, 2] : [colors.wait, 1.2];
    drawBox(x1 - 0.5, top - 0.5, x2 - x1, tall + 1, null, ...style);
  }
}

// Waits: for each rank that others wait for, a line beside the lanes with an arrow

function drawWaits() {
  targets.forEach((target, n) => {
    const x = view.width - gutter + 14 + 12 * n,
      y = yOf(laneOf.get(target)) + height / 2;
    const from = data.waits
      .filter(([rank, ranks]) => ranks.includes(target) && laneOf.has(rank))
      .map(([rank]) => yOf(laneOf.get(rank)) + height / 2);
    if (!from.length) return;
    const isCircle = data.waits.some(([rank]) => rank === target);
    const color = isCircle && targets.length > 1 ? colors.wait : colors.culprit;
    const edge = view.width - gutter + 3;
    drawLine(x, Math.min(y, ...from), x, Math.max(y, ...from), color, 1.5);
    for (const each of from) {
      drawLine(edge, each, x, each, color, 1.2);
      fillCircle(edge, each, 2, color);
    }
    drawLine(edge + 3, y, x, y, color, 1.5);
    fillPolygon(color, [edge - 2, y], [edge + 6, y - 4.5], [edge + 6, y + 4.5]);
  });
}

let isDue = false;
function redraw() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}
