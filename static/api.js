/** Everything the page asks Pagoda to do, as HTTP calls that either succeed or throw words for a person. */
import { t } from "pagoda/words.js";

export class ApiError extends Error {
  /** @param {string} message for a person @param {number} status 0 when no answer came */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(method, path, body) {
  let response;
  try {
    response = await fetch(`/api/${path}`, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(t("error.unreachable"), 0);
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(messageOf(answer) ?? t("error.status", { status: response.status }), response.status);
  return answer;
}

function messageOf(answer) {
  const told = answer?.error?.message ?? answer?.error ?? answer?.detail ?? answer?.message;
  return typeof told === "string" ? told : null;
}

export const createConversation = (requestId, settings) =>
  call("POST", "conversations", { request_id: requestId, ...settings });
export const renameConversation = (id, title) => call("PATCH", `conversations/${id}`, { title });
export const changeConversation = (id, changes) => call("PATCH", `conversations/${id}`, changes);
export const restoreConversation = (id) => call("POST", `conversations/${id}/restore`, {});
export const deleteConversation = (id) => call("DELETE", `conversations/${id}`);
export const sendMessage = (conversationId, requestId, text) =>
  call("POST", `conversations/${conversationId}/messages`, { request_id: requestId, text });
export const regenerate = (messageId, requestId) =>
  call("POST", `messages/${messageId}/regenerate`, { request_id: requestId });
export const continueReply = (messageId, requestId) =>
  call("POST", `messages/${messageId}/continue`, { request_id: requestId });
export const editMessage = (messageId, requestId, text) =>
  call("POST", `messages/${messageId}/edit`, { request_id: requestId, text });
export const showBranch = (messageId) => call("POST", `messages/${messageId}/show`, {});
export const deleteTurn = (messageId) => call("DELETE", `messages/${messageId}`);
export const restoreTurn = (messageId) => call("POST", `messages/${messageId}/restore`, {});
export const selectAttempt = (messageId, attemptId) =>
  call("PATCH", `messages/${messageId}`, { selected_attempt: attemptId });
export const search = (query) => call("GET", `search?q=${encodeURIComponent(query)}`);
export const importFile = (file) => call("POST", "import", file);
export const stop = (attemptId) => call("POST", `attempts/${attemptId}/stop`, {});
export const models = () => call("GET", "models");
export const retryModel = () => call("POST", "model/retry", {});
export const courseOf = (attemptId) => call("GET", `attempts/${attemptId}/course`);
export const forecast = (model) => call("GET", `forecast?model=${encodeURIComponent(model)}`);
export const folders = () => call("GET", "folders");
export const addFolder = (path) => call("POST", "folders", { path });
export const dropFolder = (path) => call("DELETE", `folders?path=${encodeURIComponent(path)}`);
export const download = (name) => call("POST", "downloads", { name });
export const pauseDownload = (name) => call("POST", "downloads/pause", { name });
export const cancelDownload = (name) => call("POST", "downloads/cancel", { name });
export const memory = () => call("GET", "memory");
export const setMemory = (bytes) => call("PUT", "memory", { memory_bytes: bytes });
