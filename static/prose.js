/**
 * A reply's text in the page, block by block: while it streams only its last block is parsed again, and at the end the
 * whole once where that can change anything. Only blocks that come out differently are replaced, so nothing jumps.
 */
import { clean, renderBlocks, renderFinished } from "pagoda/markdown.js";
import { setFormulas } from "pagoda/math.js";

// Notes and link targets at the end of a text change blocks above them; without any, what is closed stays as it is.
const REACHES_BACK = /^ {0,3}\[[^\]\n]+\]:/m;
const CERTAIN = 8; // characters of a new block's first line before the block above it counts as closed

export class Prose {
  /** @param {HTMLElement} root an empty element that this object owns */
  constructor(root) {
    this.root = root;
    this.source = "";
    this.settled = 0; // characters of source whose blocks are closed
    this.shown = []; // HTML of each block in root, in order, as it was before cleaning
    this.settledBlocks = 0;
  }

  /** Show `source`. Text that only grew is cheap; anything else is parsed anew. */
  write(source, finished) {
    if (source === this.source && !finished) return;
    if (this.whole(source, finished)) this.settled = this.settledBlocks = 0;
    this.source = source;
    const tail = source.slice(this.settled);
    const blocks = finished && this.settled === 0 ? renderFinished(tail) : renderBlocks(tail);
    this.place(this.settledBlocks, blocks);
    if (!finished) this.settle(tail, blocks);
  }

  whole(source, finished) {
    if (!source.startsWith(this.source)) return true;
    return finished && (this.settled === 0 || REACHES_BACK.test(source));
  }

  /** Parse everything again, because the language of its buttons changed. */
  refresh() {
    this.settled = this.settledBlocks = 0;
    this.write(this.source, true);
  }

  place(first, blocks) {
    blocks.forEach(({ html }, index) => {
      const at = first + index;
      if (this.shown[at] === html) return;
      this.shown[at] = html;
      const element = this.root.children[at] ?? this.root.appendChild(newBlock());
      element.innerHTML = clean(html);
      setFormulas(element);
    });
    this.shown.length = first + blocks.length;
    while (this.root.children.length > this.shown.length) this.root.lastElementChild.remove();
  }

  settle(tail, blocks) {
    if (blocks.length < 2 || blocks.at(-1).line === null) return;
    const start = offsetOfLine(tail, blocks.at(-1).line);
    const firstLine = tail.slice(start);
    if (!firstLine.includes("\n") && firstLine.length < CERTAIN) return;
    this.settled += start;
    this.settledBlocks += blocks.length - 1;
  }
}

function newBlock() {
  const element = document.createElement("div");
  element.className = "pg-block";
  element.dir = "auto";
  return element;
}

function offsetOfLine(text, line) {
  let offset = 0;
  for (let passed = 0; passed < line; passed += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}

/**
 * Split what a thinking model wrote into its thinking and its answer.
 * @param {string} text
 * @returns {{thinking: string | null, closed: boolean, answer: string}}
 */
export function splitThinking(text) {
  const opened = /^\s*<think(?:ing)?>/.exec(text);
  if (!opened) return { thinking: null, closed: true, answer: text };
  const rest = text.slice(opened[0].length);
  const end = /<\/think(?:ing)?>/.exec(rest);
  if (!end) return { thinking: rest.replace(/<\/?[a-z]{0,8}$/, ""), closed: false, answer: "" };
  return { thinking: rest.slice(0, end.index).trim(), closed: true, answer: rest.slice(end.index + end[0].length) };
}
