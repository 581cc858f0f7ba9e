/**
 * One attempt as the page knows it, and the rules by which a delta may change it (DESIGN §2, rule 3).
 * Offsets count characters as Python does, by code point; JavaScript's own lengths count UTF-16 units.
 *
 * @typedef {{conversation_id: string, message_id: string, attempt_id: string, first: number, last: number,
 *   offset: number, text: string, progress: object | null, state: object | null}} Delta
 */

const TERMINAL = new Set(["complete", "failed", "cancelled", "interrupted"]);

let serverAhead = Date.now() - performance.now(); // milliseconds between the server's clock and performance.now()

export const isTerminal = (state) => TERMINAL.has(state);

/** Learn the server's clock, so that elapsed time is right also where the two clocks differ. */
export function agreeOnTime(serverSeconds) {
  serverAhead = serverSeconds * 1000 - performance.now();
}

export function newAttempt(raw) {
  const attempt = { id: raw.id, text: "", length: 0, lastSeq: -1, state: "sending", startedAt: 0, heardAt: 0 };
  return Object.assign(attempt, takeSnapshot(attempt, raw));
}

/** Bring a known attempt up to what a snapshot says; one that is older than what is shown changes nothing. */
export function refreshAttempt(attempt, raw) {
  const newer = (raw.last_seq ?? -1) >= attempt.lastSeq;
  if (newer && !(isTerminal(attempt.state) && !isTerminal(raw.state))) Object.assign(attempt, takeSnapshot(attempt, raw));
}

function takeSnapshot(attempt, raw) {
  return {
    text: raw.text,
    length: codePoints(raw.text),
    lastSeq: raw.last_seq ?? -1,
    state: raw.state,
    reason: raw.reason ?? null,
    detail: raw.detail ?? null,
    usage: raw.usage ?? null,
    timings: raw.timings ?? null,
    progress: raw.progress ?? null,
    model: raw.model ?? null,
    startedAt: raw.created_at * 1000 - serverAhead,
    heardAt: performance.now(),
  };
}

/** @param {number} seconds since the source of this attempt last said anything, as the server knows it */
export function heardBefore(attempt, seconds) {
  attempt.heardAt = performance.now() - seconds * 1000;
}

/**
 * @param {Delta} delta
 * @returns {"applied" | "stale" | "gap"} "gap": something is missing, only a snapshot helps
 */
export function applyDelta(attempt, delta) {
  if (delta.last <= attempt.lastSeq || isTerminal(attempt.state)) return "stale";
  if (delta.first > attempt.lastSeq + 1) return "gap";
  if (delta.text) {
    const overlap = attempt.length - delta.offset;
    if (overlap < 0) return "gap";
    const fresh = overlap === 0 ? delta.text : [...delta.text].slice(overlap).join("");
    attempt.text += fresh;
    attempt.length += codePoints(fresh);
    if (attempt.state === "sending") attempt.state = "streaming";
  }
  if (delta.progress) attempt.progress = delta.progress;
  if (delta.state) Object.assign(attempt, delta.state);
  attempt.lastSeq = delta.last;
  attempt.heardAt = performance.now();
  return "applied";
}

export function codePoints(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}
