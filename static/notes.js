/** From the number of a footnote to its note, and from the note back to where it was mentioned first. */

/** @param {HTMLElement} button of static/extras.js */
export function goToNote(button) {
  const answer = button.closest(".pg-prose");
  const mentions = [...answer.querySelectorAll(".pg-note:not(.back)")];
  const notes = [...answer.querySelectorAll(".pg-notes li")];
  const target = button.classList.contains("back")
    ? mentions.find((other) => Number(other.textContent) === notes.indexOf(button.closest("li")) + 1)
    : notes[Number(button.textContent) - 1];
  if (!target) return; // the note has not been written yet
  target.scrollIntoView({ block: "nearest" });
  target.focus({ preventScroll: true });
}
