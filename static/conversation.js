/**
 * Conversations as the page knows them: a few recent ones are kept, so that going back to one is immediate.
 * What the server says is merged into what is shown; nothing shown is thrown away and built again.
 */
import { reactive } from "vue";
import { applyDelta, isTerminal, newAttempt, refreshAttempt } from "pagoda/attempt.js";

const KEPT = 12; // conversations in memory; a reload or a switch to an older one asks the server
const kept = new Map();

/** @param {string | null} id null for a chat that has no id yet */
export function conversationFor(id) {
  const known = id !== null && kept.get(id);
  const conversation = known || reactive(blank(id));
  if (id !== null) keep(conversation);
  return conversation;
}

function blank(id) {
  return { id, title: null, model: null, system: null, sampling: {}, messages: [], earlier: [], loaded: id === null, missing: false };
}

/** Put a conversation under its id, as the most recent one. */
export function keep(conversation) {
  kept.delete(conversation.id);
  kept.set(conversation.id, conversation);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
}

export function forget(id) {
  kept.delete(id);
}

/** The message of something typed here that the server has not confirmed yet. */
export function unsentMessage(requestId, text, error = null) {
  return { key: requestId, id: null, request_id: requestId, role: "user", text, attempts: [], error };
}

/**
 * Take over a conversation. The snapshot has its newest messages, and the ids of those `earlier`: of these, what is
 * here already stays. Messages that were typed here and are not known there stay at the end.
 */
export function absorb(conversation, snapshot) {
  conversation.title = snapshot.title;
  conversation.model = snapshot.model;
  conversation.system = snapshot.system ?? null;
  conversation.sampling = snapshot.sampling ?? {};
  conversation.loaded = true;
  conversation.missing = false;
  const merged = snapshot.messages.map((raw) => refreshMessage(find(conversation, raw), raw));
  const unsent = conversation.messages.filter((message) => message.id === null && !merged.includes(message));
  const earlier = snapshot.earlier ?? [];
  const here = new Map(conversation.messages.map((message) => [message.id, message]));
  let first = earlier.length; // of the earlier messages that are here without a gap
  while (first > 0 && here.has(earlier[first - 1])) first -= 1;
  conversation.earlier = earlier.slice(0, first);
  conversation.messages = [...earlier.slice(first).map((id) => here.get(id)), ...merged, ...unsent];
}

/** Put messages before the first one, as the person scrolls up to them. */
export function absorbEarlier(conversation, messages, ids) {
  const here = new Set(conversation.messages.map((message) => message.id));
  const fresh = messages.filter((raw) => !here.has(raw.id)).map((raw) => refreshMessage(undefined, raw));
  conversation.messages = [...fresh, ...conversation.messages];
  conversation.earlier = ids;
}

/** Take over some messages: new ones go to the end, before what is still unsent. */
export function absorbMessages(conversation, messages) {
  for (const raw of messages) {
    const known = find(conversation, raw);
    if (!known && conversation.earlier.includes(raw.id)) continue; // it comes when the person scrolls up to it
    const message = refreshMessage(known, raw);
    if (known) continue;
    const firstUnsent = conversation.messages.findIndex((other) => other.id === null);
    conversation.messages.splice(firstUnsent < 0 ? conversation.messages.length : firstUnsent, 0, message);
  }
}

function find(conversation, raw) {
  return conversation.messages.find(
    (message) => message.id === raw.id || (raw.request_id && message.role === raw.role && message.request_id === raw.request_id),
  );
}

function refreshMessage(known, raw) {
  const message = known ?? reactive({ key: raw.request_id && raw.role === "user" ? raw.request_id : raw.id, attempts: [] });
  Object.assign(message, { id: raw.id, request_id: raw.request_id ?? null, role: raw.role, text: raw.text, error: null });
  message.attempts = (raw.attempts ?? []).map((rawAttempt) => {
    const attempt = message.attempts.find((other) => other.id === rawAttempt.id);
    if (!attempt) return newAttempt(rawAttempt);
    refreshAttempt(attempt, rawAttempt);
    return attempt;
  });
  message.versions = raw.versions ?? [];
  message.current_attempt = raw.current_attempt ?? null;
  message.selected_attempt = raw.selected_attempt ?? raw.current_attempt ?? null;
  return message;
}

/**
 * @param {import("pagoda/attempt.js").Delta} delta
 * @returns {"applied" | "stale" | "gap"}
 */
export function applyToConversation(conversation, delta) {
  if (conversation.earlier.includes(delta.message_id)) return "stale";
  const message = conversation.messages.find((other) => other.id === delta.message_id);
  if (!message) return "stale"; // of a branch that is not on screen: messages always come before their deltas
  const attempt = message.attempts.find((other) => other.id === delta.attempt_id);
  return attempt ? applyDelta(attempt, delta) : "gap";
}

/** The attempt whose text stands on the page for this message. */
export function displayed(message) {
  return message.attempts.find((attempt) => attempt.id === message.selected_attempt) ?? message.attempts.at(-1) ?? null;
}

/** The attempts that have not ended, the one being written first, then those that wait for their turn. */
export function openAttempts(conversation) {
  const open = conversation.messages.map((message) => message.attempts.at(-1)).filter((attempt) => attempt && !isTerminal(attempt.state));
  const waits = (attempt) => Number(attempt.progress?.stage === "queued"); // a new version of an old reply may wait for a later one
  return open.sort((one, other) => waits(one) - waits(other));
}
