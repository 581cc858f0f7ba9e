/** Goes to the message a search has found: brings its branch on screen if it has to, then shows the words to the eye. */
import * as api from "pagoda/api.js";
import { finishAll } from "pagoda/prose.js";
import { session } from "pagoda/session.js";

const LIT_MS = 5000;
const ABOVE = 120; // pixels of what stands before the words

/**
 * Call it whenever the conversation on screen has been shown (again).
 * @param {object} conversation
 * @param {HTMLElement} column
 * @param {import("pagoda/follow.js").Follower} follower
 * @param {() => void} fetchEarlier asks for messages before those that are here
 */
export async function bringIntoView(conversation, column, follower, fetchEarlier) {
  const sought = session.sought;
  if (!sought || sought.conversation !== conversation.id || !conversation.loaded) return;
  const element = column.querySelector(`[data-message="${CSS.escape(sought.message)}"]`);
  if (element) {
    session.sought = null;
    finishAll();
    const ranges = wordsIn(element, sought.words);
    const within = (ranges[0] ?? element).getBoundingClientRect().top - element.getBoundingClientRect().top;
    follower.restore({ message: sought.message, offset: within - ABOVE });
    light(element, ranges);
  } else if (conversation.earlier.includes(sought.message)) {
    fetchEarlier(); // then this is called again
  } else if (!sought.asked) {
    sought.asked = true; // it is on another branch; the server shows that one, and this is called again
    await api.showBranch(sought.message).catch(() => (session.sought = null));
  }
}

/** Where the words stand in what is shown, in the order in which they are read. */
function wordsIn(element, words) {
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.toLowerCase();
    if (!walker.currentNode.parentElement.closest(".pg-prose, .pg-bubble")) continue;
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + word.length);
        ranges.push(range);
      }
    }
  }
  return ranges;
}

function light(element, ranges) {
  element.classList.add("pg-lit");
  setTimeout(() => element.classList.remove("pg-lit"), LIT_MS);
  if (!CSS.highlights || !ranges.length) return; // an older browser: the message is lit as a whole
  const highlight = new Highlight(...ranges);
  CSS.highlights.set("pg-found", highlight);
  setTimeout(() => CSS.highlights.get("pg-found") === highlight && CSS.highlights.delete("pg-found"), LIT_MS);
}
