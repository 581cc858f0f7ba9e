/**
 * Markdown to safe HTML, one string per top-level block. What a model writes is hostile input: raw HTML is shown as
 * text, no image is fetched, links open apart, and DOMPurify has the last word.
 */
import createDOMPurify from "pagoda/vendor/dompurify/purify.es.mjs";
import highlighter from "pagoda/vendor/highlightjs/highlight.min.js";
import MarkdownIt from "pagoda/vendor/markdown-it/markdown-it.esm.min.mjs";
import { extras } from "pagoda/extras.js";
import { mathSyntax } from "pagoda/math.js";
import { language, t } from "pagoda/words.js";

const HIGHLIGHT_LIMIT = 20_000; // characters; beyond it colouring a block costs more than a frame

const NAME_OF_LANGUAGE = /^[\w+#.-]{1,24}$/; // anything else would speak in the name of the page

const markdown = new MarkdownIt({ html: false, linkify: true, breaks: true, highlight });
markdown.use(mathSyntax).use(extras);
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // "stdio.h" and "main.py" are not links
// Without its slashes "http:api/stop" would be an address of this page.
markdown.validateLink = (url) => /^(https?:\/\/|mailto:)/i.test(url.trim()) && URL.canParse(url.trim());
markdown.renderer.rules.fence = (tokens, index) => codeBlock(tokens[index].content, tokens[index].info.trim().split(/\s+/)[0]);
markdown.renderer.rules.code_block = (tokens, index) => codeBlock(tokens[index].content, "");
markdown.renderer.rules.table_open = () => '<div class="pg-table" tabindex="0" role="region"><table>';
markdown.renderer.rules.table_close = () => "</table></div>";
markdown.renderer.rules.td_open = markdown.renderer.rules.th_open = cell;
markdown.renderer.rules.image = imageAsLink;

// A column's alignment comes as a style, which no text of a model may bring: only these three words are taken from it.
function cell(tokens, index) {
  const aligned = /^text-align:(left|center|right)$/.exec(tokens[index].attrGet("style") ?? "");
  return `<${tokens[index].tag}${aligned ? ` class="${aligned[1]}"` : ""}>`;
}

// An image would be fetched from its host, and tell that host what is being read: it is shown as a link instead.
function imageAsLink(tokens, index, options) {
  const escape = markdown.utils.escapeHtml;
  const source = tokens[index].attrGet("src");
  const label = escape(tokens[index].content || source);
  return markdown.validateLink(source) ? `<a href="${escape(source)}" class="pg-image">${label}</a>` : label;
}

function highlight(code, name) {
  if (code.length > HIGHLIGHT_LIMIT || !highlighter.getLanguage(name)) return "";
  return highlighter.highlight(code, { language: name, ignoreIllegals: true }).value;
}

function codeBlock(code, name) {
  const escape = markdown.utils.escapeHtml;
  const body = highlight(code, name) || escape(code);
  return (
    `<div class="pg-code"><div class="pg-code-head"><span>${NAME_OF_LANGUAGE.test(name) ? name : escape(t("code.plain"))}</span>` +
    `<button type="button" class="pg-copy-code">${escape(t("action.copy"))}</button></div>` +
    `<pre tabindex="0"><code dir="ltr">${body}</code></pre></div>`
  );
}

const purifier = createDOMPurify(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});
const ALLOWED = {
  ALLOWED_TAGS:
    "a b blockquote br button code del div em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong sub sup table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["href", "class", "dir", "start", "tabindex", "role", "type"],
  ALLOW_DATA_ATTR: false,
};

const KEPT = 400; // blocks and replies kept as HTML: going back to a conversation parses nothing again
const cleaned = new Map();
const parsed = new Map();

function keep(map, key, make) {
  if (!map.has(key)) {
    if (map.size >= KEPT) map.delete(map.keys().next().value);
    map.set(key, make());
  }
  return map.get(key);
}

/** What may go into the page of a block that `renderBlocks` made. */
export const clean = (html) => keep(cleaned, html, () => purifier.sanitize(html, ALLOWED));

// Notes and link targets at the end of a text change blocks above them.
const REACHES_BACK = /^ {0,3}\[[^\]\n]+\]:/m;
const PIECE = 12_000; // characters parsed in one go where a text is long: a few milliseconds

/** Whether what stands at the end of this text can change what stands above it. */
export const reachesBack = (source) => REACHES_BACK.test(source);

/** A top-level block. Its HTML, not clean yet, is made when somebody asks: colouring code is most of the work. */
class Block {
  #tokens;
  #env;
  #html = null;

  constructor(tokens, env) {
    this.#tokens = tokens;
    this.#env = env;
    this.line = tokens[0].map?.[0] ?? null; // where it begins in the source; null: it has no place there, like footnotes
  }

  get html() {
    this.#html ??= markdown.renderer.render(this.#tokens, markdown.options, this.#env);
    return this.#html;
  }
}

/**
 * @param {string} source
 * @returns {Block[]} the top-level blocks
 */
export function renderBlocks(source) {
  const env = {};
  const tokens = markdown.parse(source, env);
  const blocks = [];
  let [from, depth] = [0, 0];
  for (let index = 0; index < tokens.length; index += 1) {
    depth += tokens[index].nesting;
    if (depth > 0) continue;
    blocks.push(new Block(tokens.slice(from, index + 1), env));
    from = index + 1;
  }
  return blocks;
}

/**
 * The same, piece by piece: each piece is parsed to its end, and the next one begins with its last block, which may go
 * on there.
 * @param {string} source
 * @returns {Generator<{blocks: Block[], last: number}>} `last`: the character at which the newest block begins
 */
export function* blocksInPieces(source) {
  const known = parsed.get(language.code + source);
  if (known) return yield known;
  const all = { blocks: [], last: 0 };
  let size = reachesBack(source) ? source.length : PIECE;
  for (let from = 0; from < source.length || from === 0; ) {
    const end = source.indexOf("\n", from + size) + 1 || source.length;
    const piece = source.slice(from, end);
    const blocks = renderBlocks(piece);
    const line = blocks.at(-1)?.line ?? null;
    all.last = from + (line === null ? 0 : offsetOfLine(piece, line));
    if (end === source.length) {
      yield { blocks, last: all.last };
      all.blocks.push(...blocks);
      break;
    }
    if (all.last === from) {
      size *= 2; // one block longer than a piece
      continue;
    }
    yield { blocks: blocks.slice(0, -1), last: all.last };
    all.blocks.push(...blocks.slice(0, -1));
    from = all.last;
  }
  keep(parsed, language.code + source, () => all);
}

/** How many characters stand before that line. */
export function offsetOfLine(text, line) {
  let offset = 0;
  for (let passed = 0; passed < line; passed += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}
