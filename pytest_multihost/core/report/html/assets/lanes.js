"use strict";
// The lanes of the ranks over time, on a canvas: ten thousand operations are too many for elements.

const data = JSON.parse(document.getElementById("data").textContent);
const box = document.getElementById("lanes");
const names = box.querySelector(".names");
const canvas = box.querySelector("canvas");
const selectionText = document.getElementById("selection");
const SIZE = 8; // numbers of an operation
const OPEN = -1;
const TOP = 30;
const PAD = 10;
const MIN_SPAN = 1e-6;
const view = { from: 0, to: 1, width: 0, selected: null, drag: null };

// Lanes: the culprits first, then in the order of the ranks.

const lanes = data.ranks.map((rank) => ({ ...rank, operations: operationsOf(rank.rank) }));
lanes.sort((a, b) => (b.role === "culprit") - (a.role === "culprit") || a.rank - b.rank);
const laneOf = new Map(lanes.map((lane, index) => [lane.rank, index]));
const height = lanes.length <= 8 ? 36 : lanes.length <= 20 ? 26 : 18;
const waits = new Map(data.waits.map(([rank, , names]) => [rank, names])); // what each waits for

// Arrows lead to the culprits alone, if others wait for any; in a circle all are both.
const awaited = [...new Set(data.waits.flatMap(([, ranks]) => ranks))].filter((r) => laneOf.has(r));
const blamed = awaited.filter((rank) => lanes[laneOf.get(rank)].role === "culprit");
const targets = (blamed.length ? blamed : awaited).slice(0, 6);
const inset = height < 20 ? 3 : 5;
const gutter = targets.length ? 26 + 12 * targets.length : PAD;

function operationsOf(rank) {
  const flat = data.operations[rank] || [];
  const found = [];
  const rows = []; // when each row is free again
  for (let i = 0; i < flat.length; i += SIZE) {
    const [kind, sequence, begin, length, waited, place, detail, failed] = flat.slice(i, i + SIZE);
    const end = length === OPEN ? Infinity : begin + length;
    let row = rows.findIndex((free) => free <= begin);
    if (row < 0) row = rows.length < 3 ? rows.length : 2;
    rows[row] = end;
    found.push({
      rank,
      kind: data.kinds[kind],
      sequence,
      begin,
      end,
      waited: waited === OPEN ? null : begin + waited,
      place: data.places[place],
      detail: data.details[detail],
      failed: failed === 1,
      row,
    });
  }
  for (const each of found) each.rows = Math.max(1, rows.length);
  return found;
}

const key = (o) =>
  o.kind.kind === "collective" && o.sequence ? `${o.kind.meets}#${o.sequence}` : null;
const meetings = new Map();
for (const lane of lanes) {
  for (const each of lane.operations) {
    const k = key(each);
    if (k) meetings.has(k) ? meetings.get(k).push(each) : meetings.set(k, [each]);
  }
}

// Time and place

const endOf = (each) => (each.end === Infinity ? lanes[laneOf.get(each.rank)].end : each.end);

function axisPosition(us) {
  for (const [begin, end, left, right] of data.axis) {
    if (us <= end)
      return left + ((right - left) * Math.max(0, us - begin)) / Math.max(1, end - begin);
  }
  return 1;
}
const plotWidth = () => view.width - PAD - gutter;
const positionAt = (x) => view.from + ((x - PAD) / plotWidth()) * (view.to - view.from);
const toX = (position) => PAD + ((position - view.from) / (view.to - view.from)) * plotWidth();
const xOf = (us) => toX(axisPosition(Math.min(us, data.end)));
const yOf = (index) => TOP + index * height;
const seconds = (us) => {
  const s = us / 1e6;
  return s < 0.001
    ? `${(s * 1e6).toFixed(0)} µs`
    : s < 1
      ? `${(s * 1e3).toFixed(s < 0.1 ? 1 : 0)} ms`
      : `${s.toFixed(2)} s`;
};
const timestamp = (us) => `+${(us / 1e6).toFixed(us < 1e7 ? 3 : 2)} s`;
