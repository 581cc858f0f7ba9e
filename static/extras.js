/** What markdown-it does not have by itself: task lists, and footnotes with their notes at the end (static/notes.js). */
import footnote from "pagoda/vendor/markdown-it-footnote/index.mjs";

/** A plugin for markdown-it. */
export function extras(markdown) {
  markdown.core.ruler.after("inline", "tasks", tasks);
  markdown.renderer.rules.task = (tokens, index) => `<span class="pg-box">${tokens[index].meta.done ? "☑" : "☐"}</span> `;
  markdown.use(footnote);
  const rules = markdown.renderer.rules;
  // Buttons: links would need ids, which clash between replies, and would change the page's own address.
  // U+2060: a line may not end between a word and the number of its note.
  rules.footnote_ref = (tokens, index) => `<sup>\u2060<button type="button" class="pg-note">${tokens[index].meta.id + 1}</button></sup>`;
  rules.footnote_block_open = () => '<div class="pg-notes"><hr><ol>';
  rules.footnote_block_close = () => "</ol></div>";
  rules.footnote_open = () => '<li tabindex="-1">';
  rules.footnote_close = () => "</li>";
  rules.footnote_anchor = () => ' <button type="button" class="pg-note back">↩</button>';
}

function tasks(state) {
  state.tokens.forEach((token, index) => {
    const item = state.tokens[index - 2];
    const box = /^\[([ xX])\]\s/.exec(token.content);
    if (token.type !== "inline" || item?.type !== "list_item_open" || !box || token.children[0]?.type !== "text") return;
    token.children[0].content = token.children[0].content.slice(box[0].length);
    const mark = new state.Token("task", "", 0);
    mark.meta = { done: box[1] !== " " };
    token.children.unshift(mark);
    item.attrJoin("class", "pg-task");
  });
}
