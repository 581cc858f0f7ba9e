/**
 * What was typed and not sent, per conversation, in localStorage: it survives a reload and a restart of the server.
 * What was sent and not confirmed, per tab, in sessionStorage: it comes back with a Retry instead of being lost.
 */
const DRAFT = "pagoda.draft.";
const UNSENT = "pagoda.unsent.";

const name = (prefix, id) => prefix + (id ?? "new");

// Drafts that the browser has no room for (it keeps some five million characters): there until the page is left.
const held = new Map();

export const draftOf = (id) => held.get(name(DRAFT, id)) ?? localStorage.getItem(name(DRAFT, id)) ?? "";

/** Whether it is lost with this page. */
export const isUnkept = (id) => held.has(name(DRAFT, id));

export function keepDraft(id, text) {
  if (put(localStorage, name(DRAFT, id), text)) held.delete(name(DRAFT, id));
  else held.set(name(DRAFT, id), text);
}

/** False when the browser has no room for it; what stood there before stays then. */
function put(storage, key, text) {
  if (!text) storage.removeItem(key);
  else {
    try {
      storage.setItem(key, text);
    } catch {
      return false;
    }
  }
  return true;
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
  put(sessionStorage, name(UNSENT, id), items.length ? JSON.stringify(items) : ""); // no room: its bubble has it still
}
