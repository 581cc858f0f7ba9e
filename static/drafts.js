/**
 * What was typed and not sent, per conversation, in localStorage: it survives a reload and a restart of the server.
 * What was sent and not confirmed, per tab, in sessionStorage: it comes back with a Retry instead of being lost.
 */
const DRAFT = "pagoda.draft.";
const UNSENT = "pagoda.unsent.";

const name = (prefix, id) => prefix + (id ?? "new");

export const draftOf = (id) => localStorage.getItem(name(DRAFT, id)) ?? "";

export function keepDraft(id, text) {
  if (text) localStorage.setItem(name(DRAFT, id), text);
  else localStorage.removeItem(name(DRAFT, id));
}

/** What was typed in a conversation that is gone goes on as a new one's draft. */
export function rescueDraft(id) {
  const text = [draftOf(null), draftOf(id)].filter(Boolean).join("\n\n");
  keepDraft(id, "");
  keepDraft(null, text);
}

/** @returns {{request_id: string, text: string}[]} */
export function unsentOf(id) {
  return JSON.parse(sessionStorage.getItem(name(UNSENT, id)) ?? "[]");
}

export function keepUnsent(id, item) {
  write(id, [...unsentOf(id).filter((other) => other.request_id !== item.request_id), item]);
}

export function dropUnsent(id, requestId) {
  write(id, unsentOf(id).filter((item) => item.request_id !== requestId));
}

function write(id, items) {
  if (items.length) sessionStorage.setItem(name(UNSENT, id), JSON.stringify(items));
  else sessionStorage.removeItem(name(UNSENT, id));
}
