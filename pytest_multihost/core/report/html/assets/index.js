"use strict";
// Which tests are shown: a button for each sort.
for (const button of document.querySelectorAll("[data-shows]")) {
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isShown));
    for (const row of document.querySelectorAll("tr[data-word]")) {
      if (row.dataset.word === button.dataset.shows) row.hidden = !isShown;
    }
  });
}
