/** Text files that a person drops or pastes into a message: read in the browser, sent as part of its text. */
import { bytes, number, t } from "pagoda/words.js";

/** @typedef {{name: string, size: number, text: string}} Attached */

/**
 * @param {FileList | File[]} files
 * @param {number} limit the most characters a message may have: nothing bigger is even read
 * @returns {Promise<{attached: Attached[], refused: string | null}>} `refused` says why one is not among them
 */
export async function readTexts(files, limit) {
  const attached = [];
  let refused = null;
  for (const file of files) {
    if (file.size > 4 * limit) refused = t("files.too_big", { name: file.name, size: bytes(file.size) });
    else {
      const text = textOf(await file.arrayBuffer());
      if (text === null) refused = t("files.no_text", { name: file.name });
      else attached.push({ name: file.name, size: file.size, text });
    }
  }
  return { attached, refused };
}

function textOf(buffer) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(buffer);
    return text.includes("\0") ? null : text.replace(/\r\n?/g, "\n");
  } catch {
    return null;
  }
}

/**
 * Whether words on the clipboard are more than any message may have; then they are not pasted. Browsers lay out a field
 * of a million characters for minutes, and nothing of the page works meanwhile. The clipboard still has them.
 * @param {ClipboardEvent} event
 * @returns {string | null} what to tell the person
 */
export function tooLongToPaste(event, limit) {
  const { length } = event.clipboardData.getData("text/plain");
  if (length <= limit) return null;
  event.preventDefault();
  return t("composer.paste_too_long", { count: number(length), limit: number(limit) });
}

/** The message as it is sent: each file in a fence that nothing inside it can close. */
export function withFiles(text, attached) {
  const parts = attached.map((file) => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
    const fence = "`".repeat(longest + 1);
    return `${file.name}\n${fence}\n${file.text.replace(/\n$/, "")}\n${fence}`;
  });
  return [text, ...parts].filter(Boolean).join("\n\n");
}
