"use strict";
// Without this script the runs of every cell are shown.
const cells = [...document.querySelectorAll("button.cell")];

function open(cell, isOpen) {
  cell.setAttribute("aria-expanded", String(isOpen));
  document.getElementById(cell.getAttribute("aria-controls")).hidden = !isOpen;
}

for (const cell of cells) {
  open(cell, false);
  cell.addEventListener("click", () => open(cell, cell.getAttribute("aria-expanded") !== "true"));
}

// A weakness's link opens the cell of its run.
function follow() {
  const cell = cells.find((each) => `#${each.getAttribute("aria-controls")}` === location.hash);
  if (!cell) return;
  open(cell, true);
  cell.closest("tbody").hidden = false;
  cell.focus();
}
addEventListener("hashchange", follow);
follow();

// Arrows move from cell to cell.
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const rows = [...document.querySelectorAll(".matrix > tbody")];
for (const cell of cells) {
  cell.addEventListener("keydown", (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const [down, right] = STEPS[event.key];
    let [row, column] = [rows.indexOf(cell.closest("tbody")), cell.closest("td").cellIndex];
    for (;;) {
      [row, column] = [row + down, column + right];
      const next = rows[row]?.rows[0].cells[column];
      if (!next || next.tagName !== "TD") return;
      const button = next.querySelector("button.cell");
      if (button && !rows[row].hidden) return button.focus();
    }
  });
}

// A button for each outcome shows or hides the rows of that outcome.
for (const button of document.querySelectorAll("[data-shows]")) {
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isShown));
    for (const row of rows) if (row.dataset.word === button.dataset.shows) row.hidden = !isShown;
  });
}
