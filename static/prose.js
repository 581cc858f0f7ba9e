/**
 * A reply's text in the page, block by block: while it streams only its last block is parsed again, and at the end the
 * whole once where that can change anything. Only blocks that come out differently are replaced, so nothing jumps. A
 * long text comes in slices, so that the page never stands still; where it is new, its end first, where one reads on.
 */
import { blocksInPieces, clean, offsetOfLine, reachesBack, renderBlocks } from "pagoda/markdown.js";
import { setFormulas } from "pagoda/math.js";
import { showUnseen } from "pagoda/unseen.js";

const CERTAIN = 8; // characters of a new block's first line before the block above it counts as closed
const LONG = 20_000; // characters that are not parsed in one go
const GROUP = 40; // blocks of a long text that come into the page together, more than a screen of them
const SLICE_MS = 12; // of work before whatever else waits has its turn
const filling = new Set(); // those that are not done yet

/** Have all of every text in the page now, as high as it is: somebody looks for a place in it. */
export function finishAll() {
  for (const prose of [...filling]) prose.fillUntil(Infinity);
  for (const group of document.querySelectorAll(".pg-far")) group.classList.remove("pg-far");
}

const soon = (work) => (globalThis.scheduler?.postTask ? scheduler.postTask(work) : setTimeout(work));

export class Prose {
  /** @param {HTMLElement} root an empty element that this object owns */
  constructor(root) {
    this.root = root;
    this.source = "";
    this.settled = 0; // characters of source whose blocks are closed
    this.shown = []; // HTML of each block in root, in order, as it was before cleaning
    this.settledBlocks = 0;
    this.work = null; // what is left to do of a long text
    this.elements = []; // of the blocks; those of a text that came long lie in groups
    this.next = null; // what has been asked for meanwhile
  }

  /** Show `source`. Text that only grew is cheap; anything else is parsed anew. */
  write(source, finished) {
    if (source === this.source && !finished) return;
    if (this.work) {
      this.next = [source, finished];
      return;
    }
    if (this.whole(source, finished)) this.settled = this.settledBlocks = 0;
    this.source = source;
    const tail = source.slice(this.settled);
    if (tail.length > LONG && this.settled === 0) {
      this.work = this.fill(tail, finished);
      filling.add(this);
      this.fillUntil(performance.now() + SLICE_MS);
      return;
    }
    const blocks = renderBlocks(tail);
    this.place(this.settledBlocks, blocks);
    if (!finished) this.settle(tail, blocks);
  }

  whole(source, finished) {
    if (!source.startsWith(this.source)) return true;
    return finished && (this.settled === 0 || reachesBack(source));
  }

  /** Parse everything again, because the language of its buttons changed. */
  refresh() {
    this.settled = this.settledBlocks = 0;
    this.write(this.source, true);
  }

  /** Go on with a long text until that time. */
  fillUntil(time) {
    while (this.work) {
      if (!this.work.next().done) {
        if (performance.now() < time) continue;
        return soon(() => this.fillUntil(performance.now() + SLICE_MS));
      }
      this.work = null;
      filling.delete(this);
      const { next } = this;
      this.next = null;
      if (next) this.write(...next);
    }
  }

  *fill(source, finished) {
    const blocks = [];
    let last = 0;
    for (const piece of blocksInPieces(source)) {
      for (const block of piece.blocks) blocks.push(block);
      last = piece.last;
      yield;
    }
    if (this.shown.length === 0) {
      for (let end = blocks.length; end > 0; end -= GROUP) {
        const group = newGroup(Math.min(end, GROUP));
        for (let at = Math.max(0, end - GROUP); at < end; at += 1) {
          dress(group.appendChild(newBlock()), blocks[at].html);
          yield;
        }
        this.root.prepend(group);
        yield;
      }
      this.elements = [...this.root.querySelectorAll(".pg-block")];
      this.shown = blocks.map((block) => block.html);
    } else {
      for (let at = 0; at < blocks.length; at += 1) {
        this.put(at, blocks[at].html);
        yield;
      }
      this.trim(blocks.length);
    }
    if (finished || blocks.length < 2 || blocks.at(-1).line === null) return;
    this.settled = last;
    this.settledBlocks = blocks.length - 1;
  }

  place(first, blocks) {
    blocks.forEach(({ html }, index) => this.put(first + index, html));
    this.trim(first + blocks.length);
  }

  put(at, html) {
    if (this.shown[at] === html) return;
    this.shown[at] = html;
    this.elements[at] ??= this.root.appendChild(newBlock());
    dress(this.elements[at], html);
  }

  trim(count) {
    this.shown.length = count;
    for (const element of this.elements.splice(count)) {
      const group = element.parentElement;
      element.remove();
      if (group !== this.root && !group.childElementCount) group.remove();
    }
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

function dress(element, html) {
  element.innerHTML = clean(html);
  showUnseen(element);
  setFormulas(element);
}

// What is far out of sight is not laid out: 2,500 blocks moved by what comes before them would take 0.3 s each time.
function newGroup(blocks) {
  const group = document.createElement("div");
  group.className = "pg-group pg-far";
  group.style.containIntrinsicBlockSize = `auto ${4.5 * blocks}rem`;
  return group;
}

function newBlock() {
  const element = document.createElement("div");
  element.className = "pg-block";
  element.dir = "auto";
  return element;
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
