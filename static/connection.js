/**
 * Whether Pagoda can be reached: known from the page's socket, from requests that got no answer, and from the
 * browser's own word, which is checked first: a computer without a network still reaches a Pagoda on itself.
 */
import { happenings, session } from "pagoda/session.js";

const AGAIN_MS = 1500;
const ANSWER_MS = 2500;
let pageSocket = null;
let socketUp = true;
let reachable = true;
let probing = null;

/** What is known now: a request that is answered is enough to send what waits, the socket may follow later. */
function tell() {
  session.connected = socketUp && reachable;
  if (reachable) happenings.dispatchEvent(new CustomEvent("back"));
}

/**
 * The socket's own next try may be seconds away, while Pagoda answers already. NiceGUI tells the server at such a try,
 * and only then, which message it expects next; a number from before would make the server load the page anew.
 */
function hurrySocket() {
  if (socketUp) return;
  pageSocket.io.opts.query.next_message_id = window.nextMessageId;
  pageSocket.disconnect().connect();
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
    hurrySocket();
  } catch {
    reachable = false;
    setTimeout(reach, AGAIN_MS);
  }
  tell();
  return reachable;
}

/** Follow the page's socket; call it when there is one. */
export function watchSocket(socket) {
  pageSocket = socket;
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
