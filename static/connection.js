/**
 * Whether Pagoda can be reached: known from the page's socket, from requests that got no answer, and from the
 * browser's own word, which is checked first: a computer without a network still reaches a Pagoda on itself.
 */
import { happenings, session } from "pagoda/session.js";

const AGAIN_MS = 1500;
const ANSWER_MS = 2500;
let socketUp = true;
let reachable = true;
let probing = null;

function tell() {
  const connected = socketUp && reachable;
  if (connected === session.connected) return;
  session.connected = connected;
  if (connected) happenings.dispatchEvent(new CustomEvent("back"));
}

/** @returns {Promise<boolean>} whether Pagoda answers now; while it does not, it is asked again and again */
export function reach() {
  probing ??= ask().finally(() => (probing = null));
  return probing;
}

async function ask() {
  try {
    await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    reachable = true;
  } catch {
    reachable = false;
    setTimeout(reach, AGAIN_MS);
  }
  tell();
  return reachable;
}

/** Follow the page's socket; call it when there is one. */
export function watchSocket(socket) {
  socket?.on("connect", () => {
    socketUp = reachable = true;
    tell();
  });
  socket?.on("disconnect", () => {
    socketUp = false;
    tell();
  });
}

addEventListener("offline", reach);
addEventListener("online", reach);
