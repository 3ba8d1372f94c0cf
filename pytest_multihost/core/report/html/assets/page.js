// Buttons that copy, and links to parts of the page that are folded.
async function copy(button) {
  const source = document.getElementById(button.dataset.copies);
  const before = button.textContent;
  let isDone = true;
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // no permission, or a browser that has no clipboard for files
    getSelection().selectAllChildren(source);
    isDone = document.execCommand("copy");
  }
  button.textContent = isDone ? "Copied" : "Press Ctrl+C";
  setTimeout(() => {
    button.textContent = before;
  }, 1600);
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(button));
}
