/**
 * Formulas: `$…$`, `$$…$$`, `\(…\)` and `\[…\]` in markdown, set by KaTeX. It is fetched when the page is
 * idle; until then, and where KaTeX does not understand one, its source stands on the page. Prices are no formulas.
 */
import { plain } from "pagoda/unseen.js";

const CLOSING = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };
const SAFE = { trust: false, strict: false, throwOnError: true, maxExpand: 1000, maxSize: 50 };
const KEPT = 500; // formulas kept as HTML: the last block of a growing reply is set again ten times a second

let katex = null;
let loading = null;
const kept = new Map();

/** A plugin for markdown-it. */
export function mathSyntax(markdown) {
  const { escapeHtml } = markdown.utils;
  markdown.inline.ruler.before("escape", "math", inline);
  markdown.block.ruler.before("fence", "math_block", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
  markdown.renderer.rules.math = markdown.renderer.rules.math_block = (tokens, index) => {
    const { content, meta } = tokens[index];
    return `<span class="pg-math${meta.display ? " display" : ""}" dir="ltr">${escapeHtml(content)}</span>`;
  };
}

function push(state, type, content, display) {
  const token = state.push(type, "", 0);
  token.content = content;
  token.meta = { display };
  return token;
}

function inline(state, silent) {
  const { src, pos } = state;
  const opening = src.slice(pos, pos + 2);
  const closing = CLOSING[opening];
  let [begin, end, after] = [pos + 2, -1, 0];
  if (closing) {
    end = src.indexOf(closing, begin);
    after = end + 2;
  } else if (src[pos] === "$") {
    begin = pos + 1;
    end = closingDollar(src, begin);
    after = end + 1;
  }
  if (end < 0 || after > state.posMax || !src.slice(begin, end).trim()) return false;
  if (!silent) push(state, "math", src.slice(begin, end).trim(), opening === "$$" || opening === "\\[");
  state.pos = after;
  return true;
}

// As pandoc has it: no space inside the dollars, no digit behind them. And "$5, or 6$" is about money.
function closingDollar(src, begin) {
  if (/[\s$]/.test(src[begin] ?? " ")) return -1;
  for (let at = begin; at < src.length && src[at] !== "\n"; at += 1) {
    if (src[at] === "\\") at += 1;
    else if (src[at] === "$") {
      if (/\s/.test(src[at - 1]) || /\d/.test(src[at + 1] ?? "")) return -1;
      return /^[\d.,]+\s.*[a-z]{2}/i.test(src.slice(begin, at).replace(/\\[a-z]+/gi, "")) ? -1 : at;
    }
  }
  return -1;
}

function block(state, startLine, endLine, silent) {
  const lineAt = (line) => state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const first = lineAt(startLine);
  const closing = CLOSING[first.slice(0, 2)];
  if (!closing || closing === "\\)" || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [];
  for (let line = startLine; line < endLine; line += 1) {
    const text = (line === startLine ? first.slice(2) : lineAt(line)).trimEnd();
    if (line > startLine && !text) return false; // TeX has no empty lines in a formula
    if (text.includes(closing)) {
      if (!text.endsWith(closing) || text.indexOf(closing) !== text.length - 2) return false;
      lines.push(text.slice(0, -2));
      if (!lines.join("").trim()) return false;
      if (!silent) push(state, "math_block", lines.join("\n").trim(), true).map = [startLine, line + 1];
      state.line = line + 1;
      return true;
    }
    lines.push(text);
  }
  return false;
}

/** Set the formulas inside an element, now or as soon as KaTeX is here. */
export function setFormulas(element) {
  const formulas = element.querySelectorAll(".pg-math:not(.set)");
  if (!formulas.length) return;
  if (!katex) {
    load().then(() => katex && element.isConnected && setFormulas(element));
    return;
  }
  for (const formula of formulas) {
    formula.classList.add("set");
    const display = formula.classList.contains("display");
    const html = htmlOf(formula.textContent, display);
    if (html) formula.innerHTML = html;
    else formula.textContent = display ? `$$${formula.textContent}$$` : `$${formula.textContent}$`;
  }
}

/** @returns {string} "" where KaTeX does not understand the formula */
function htmlOf(source, display) {
  const key = (display ? "$$" : "$") + source;
  if (!kept.has(key)) {
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    let html = "";
    try {
      html = tamed(katex.renderToString(plain(source), { ...SAFE, displayMode: display }));
    } catch {
      // its source stays on the page
    }
    kept.set(key, html);
  }
  return kept.get(key);
}

// A colour is mixed with the ink, or text could hide on its ground; what is only room cannot be selected and copied.
function tamed(html) {
  const box = document.createElement("template");
  box.innerHTML = html;
  for (const { style } of box.content.querySelectorAll("[style]")) {
    if (style.color === "transparent") style.visibility = "hidden";
    else if (style.color) style.color = `color-mix(in oklab, ${style.color} 50%, var(--ink))`;
    if (style.backgroundColor) style.backgroundColor = `color-mix(in oklab, ${style.backgroundColor} 15%, transparent)`;
  }
  return box.innerHTML;
}

/** Fetch KaTeX while nothing else happens, so that no formula of a running reply has to wait for it. */
export const warmFormulas = () => load();

// Without a network it does not come; whoever needs it next tries again.
function load() {
  loading ??= (async () => {
    await Promise.all([fetched("link", { rel: "stylesheet" }, "href", "css"), fetched("script", {}, "src", "js")]);
    katex = window.katex;
  })().catch(() => (loading = null));
  return loading;
}

function fetched(tag, properties, address, ending) {
  const made = Object.assign(document.createElement(tag), properties);
  return new Promise((resolve, reject) => {
    made.onload = resolve;
    made.onerror = () => {
      made.remove();
      reject(new Error(`katex.min.${ending} did not come`));
    };
    made[address] = new URL(`vendor/katex/katex.min.${ending}`, import.meta.url).href;
    document.head.append(made);
  });
}
