/**
 * Sending: the bubble first, then the request. One request id per message, also when it is tried again,
 * so the server makes one message of it however often it arrives.
 */
import * as api from "pagoda/api.js";
import { unsentMessage } from "pagoda/conversation.js";
import { dropUnsent, keepUnsent, unsentOf } from "pagoda/drafts.js";
import { newId } from "pagoda/identity.js";
import { adopt } from "pagoda/session.js";
import { t } from "pagoda/words.js";

/** Show the message at once and bring it to the server. */
export function send(conversation, text) {
  const requestId = newId();
  keepUnsent(conversation.id, { request_id: requestId, text });
  conversation.messages.push(unsentMessage(requestId, text));
  return deliver(conversation, requestId);
}

/** Try a failed message again, in its place and under its old request id. */
export function resend(conversation, requestId) {
  const message = byRequest(conversation, requestId);
  if (message) message.error = null;
  return deliver(conversation, requestId);
}

/** Bring back what a reload interrupted: the server did not confirm it, so the person decides. */
export function restoreUnsent(conversation) {
  for (const item of unsentOf(conversation.id)) {
    const message = byRequest(conversation, item.request_id);
    if (message?.id) dropUnsent(conversation.id, item.request_id);
    else if (!message) conversation.messages.push(unsentMessage(item.request_id, item.text, t("error.not_confirmed")));
  }
}

/** Take a failed message away; its text goes back to the person, nothing typed is lost. */
export function withdraw(conversation, requestId) {
  const message = byRequest(conversation, requestId);
  conversation.messages = conversation.messages.filter((other) => other !== message);
  dropUnsent(conversation.id, requestId);
  return message.text;
}

const byRequest = (conversation, requestId) =>
  conversation.messages.find((message) => message.role === "user" && message.request_id === requestId);

async function deliver(conversation, requestId) {
  const text = byRequest(conversation, requestId).text;
  const keptUnder = conversation.id;
  try {
    if (conversation.id === null) await createFor(conversation, requestId);
    if (conversation.id !== keptUnder) {
      dropUnsent(keptUnder, requestId);
      keepUnsent(conversation.id, { request_id: requestId, text });
    }
    const sent = await api.sendMessage(conversation.id, requestId, text);
    dropUnsent(conversation.id, requestId);
    const message = byRequest(conversation, requestId);
    if (message) Object.assign(message, { id: sent.user_message_id, error: null });
  } catch (error) {
    const message = byRequest(conversation, requestId);
    if (message && message.id === null) message.error = error.message;
  }
}

const creations = new WeakMap(); // two quick messages in a new chat share one conversation

async function createFor(conversation, requestId) {
  if (!creations.has(conversation)) {
    const creation = api.createConversation(`${requestId}-conversation`, {
      system: conversation.system,
      sampling: conversation.sampling,
    });
    creations.set(conversation, creation);
    creation.catch(() => creations.delete(conversation));
  }
  const created = await creations.get(conversation);
  if (conversation.id === null) adopt(conversation, created.id);
}
