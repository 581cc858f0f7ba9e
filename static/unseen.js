/**
 * What stands in a text and cannot be seen, or is not what it seems: letters that turn others around, letters nobody
 * sees, a link whose words name another host than it leads to. They are shown for what they are; copied, they are the same.
 */

// Overrides turn any letters around; tags and long runs of selectors spell words that only a program reads. A flag of a
// part of a country is made of tags, and an embedding belongs to Arabic and Hebrew: these stay, inside their block.
const PROSE =
  /[\u202d\u202e\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\ufff9-\ufffb\u115f\u1160\u3164\uffa0]|(?<!\u{1F3F4}[\u{E0030}-\u{E007A}]{0,5})[\u{E0000}-\u{E007F}]+|[\ufe00-\ufe0f\u{E0100}-\u{E01EF}]{2,}/gu;
// Code is read by a machine that sees what a person does not.
const CODE =
  /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\u200b\u2060\ufeff\u00ad\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\ufff9-\ufffb\u115f\u1160\u3164\uffa0]|[\u{E0000}-\u{E007F}]+|[\ufe00-\ufe0f\u{E0100}-\u{E01EF}]{2,}/gu;
const ANY = /[^\n\t\u0020-\u007e\u00a0-\u00ac\u00ae-\u058f\u3400-\u9fff\uac00-\ud7a3\uff01-\uff5e]/u;
const TURNING = /[\u202a-\u202e\u2066-\u2069\u{E0000}-\u{E007F}]/gu;

/** Without what would turn around or hide the words beside it, for the page's own lines. */
export const plain = (text) => text.replace(TURNING, "");

/** @param {HTMLElement} block clean HTML of a reply */
export function showUnseen(block) {
  for (const link of block.querySelectorAll("a[href]")) showHost(link);
  if (!ANY.test(block.textContent)) return; // most blocks have no such letter
  const texts = [];
  const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(".pg-math")) texts.push(walker.currentNode);
  for (const text of texts) mark(text, text.parentElement.closest("code") ? CODE : PROSE);
}

function mark(text, pattern) {
  const found = [...text.data.matchAll(pattern)];
  if (!found.length) return;
  const pieces = [];
  let from = 0;
  for (const { 0: odd, index } of found) {
    pieces.push(text.data.slice(from, index), markOf(odd));
    from = index + odd.length;
  }
  text.replaceWith(...pieces, text.data.slice(from));
}

function markOf(odd) {
  const mark = Object.assign(document.createElement("span"), { className: "pg-odd", textContent: odd });
  const letters = [...odd];
  const code = `U+${letters[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  mark.dataset.code = letters.length > 1 ? `${code} ×${letters.length}` : code;
  return mark;
}

const ADDRESS = /^\s*(?:https?:\/\/|(?=www\.)|(?=[^\s/]+\.(?:com|org|net|edu|gov|info|io|ai|app|dev|cn|de|eu|fr|jp|ru|uk)\b))([^\s/?#]+)/i;

/** A link whose words are an address says where it leads, unless that is what its words say. */
function showHost(link) {
  const [, said] = ADDRESS.exec(link.textContent) ?? [];
  if (!said || !URL.canParse(link.href)) return;
  const { host } = new URL(link.href);
  if (!host || said.toLowerCase().replace(/^www\./, "") === host.replace(/^www\./, "")) return;
  link.append(Object.assign(document.createElement("span"), { className: "pg-host", dir: "ltr", textContent: ` (${host})` }));
}
