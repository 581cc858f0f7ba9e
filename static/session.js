/**
 * What this tab is looking at: the conversation on screen, the rows of the sidebar, the model, the connection.
 * Going from one conversation to another happens here, inside the page, and `back` and `forward` follow.
 */
import { reactive, shallowRef } from "vue";
import { conversationFor, keep } from "pagoda/conversation.js";
import { rescueDraft } from "pagoda/drafts.js";

export const session = reactive({
  rows: [], // sidebar rows, newest first
  rowsKnown: false,
  model: null, // {name, state, detail, progress}
  downloads: [], // {name, state, done, total, bytes_per_s, detail}: models on their way from the hub
  connected: true,
  drawer: false, // the sidebar on a narrow screen
  generation: 0, // counts loads; an answer to an older one is dropped
  searching: false, // the sidebar shows what a search has found
  sought: null, // {conversation, message, words}: what to bring into view once it is there
  limit: 0, // characters that one message may have; the composer knows
  notice: null, // one sentence for a person, e.g. why a rename failed
});

/** The conversation on screen. */
export const onScreen = shallowRef(conversationFor(idFromAddress()));

/** "leave": the old conversation is still on screen; "open": the new one is; "compose": put the cursor in the composer. */
export const happenings = new EventTarget();

const emit = (name, detail) => happenings.dispatchEvent(new CustomEvent(name, { detail }));

function idFromAddress() {
  return /^\/c\/([^/]+)$/.exec(location.pathname)?.[1] ?? null;
}

const addressOf = (id) => (id === null ? "/" : `/c/${id}`);

/** Show another conversation (null: a new chat). */
export function go(id) {
  session.drawer = false;
  if (id === onScreen.value.id && id !== null) return;
  history.pushState(null, "", addressOf(id));
  show(id);
}

/** Show a conversation with words of one of its messages in view; without a message, as it was left. */
export function seek(conversation, message, words) {
  session.sought = message ? { conversation, message, words } : null;
  go(conversation);
  if (message) emit("seek");
}

function show(id) {
  emit("leave");
  onScreen.value = conversationFor(id);
  session.notice = null;
  emit("open");
}

/** A new chat got its id: the address follows, the person stays where they are. */
export function adopt(conversation, id) {
  conversation.id = id;
  keep(conversation);
  if (onScreen.value !== conversation) return;
  history.replaceState(null, "", addressOf(id));
  emit("open");
}

/** Leave a conversation that no longer exists, for a new one; the draft comes along. */
export function leaveDeleted(id) {
  if (onScreen.value.id !== id) return;
  rescueDraft(id);
  history.replaceState(null, "", "/");
  show(null);
}

export const compose = (text) => emit("compose", text);

addEventListener("popstate", () => {
  if (idFromAddress() !== onScreen.value.id) show(idFromAddress());
});
