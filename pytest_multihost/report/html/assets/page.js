// Buttons that copy, and links to parts of the page that are folded.
function copied(button, isDone) {
  const before = button.textContent;
  button.textContent = isDone ? "Copied" : "Press Ctrl+C";
  setTimeout(() => {
    button.textContent = before;
  }, 1600);
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    copied(button, true);
  } catch {
    // no permission, or a browser that has no clipboard for files
    getSelection().selectAllChildren(source);
    copied(button, document.execCommand("copy"));
  }
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(button));
}
