/** How far a reply is, in words. Every figure comes from an event of the engine; what no event said is left out. */
import { plain } from "pagoda/unseen.js";
import { bytes, clock, duration, has, number, range, t } from "pagoda/words.js";

const SLOW_TOKEN = 0.4; // seconds; faster tokens are their own progress, a bar inside each would only flicker

const WORTH_AN_ESTIMATE = 3; // seconds; whoever waits less needs none

/**
 * @param {object | null} progress the newest progress chunk
 * @param {number} elapsed seconds since the reply was asked for
 * @param {boolean} loadingShown whether the banner says already how the model loads
 * @returns {{stage: string, details: string[], fraction: number | null}}
 */
export function describeProgress(progress, elapsed, loadingShown) {
  const time = [clock(elapsed)];
  if (progress?.stage === "loading" && loadingShown) return { stage: t("status.awaiting_model"), details: time, fraction: null };
  if (!progress) return { stage: t("status.sending"), details: time, fraction: null };
  const describe = { queued, begun, loading, prefill, decode }[progress.stage];
  const { stage, details, fraction } = describe ? describe(progress) : { stage: progress.stage, details: [], fraction: null };
  return { stage, details: [...details, ...time, ...eta(progress), ...work(progress)], fraction };
}

/** A range from measured rates, made where they were measured (backend/pace.py). None of them: no words. */
function eta({ stage, eta_low_s: low, eta_high_s: high }) {
  if (high === undefined || high < WORTH_AN_ESTIMATE) return [];
  return [t(stage === "prefill" ? "status.first_token_in" : "status.limit_in", { range: range(low, high) })];
}

function queued({ queue_position: position, queued_behind: model }) {
  if (model && position === 1) return { stage: t("status.queued_behind", { model }), details: [], fraction: null };
  const stage = position ? t("status.queued_at", { position: number(position) }) : t("status.queued");
  return { stage, details: [], fraction: null };
}

const begun = () => ({ stage: t("status.begun"), details: [], fraction: null });

function loading(progress) {
  return describeLoading({
    stage: progress.load_stage,
    done: progress.load_done,
    total: progress.load_total,
    unit: progress.load_unit,
  });
}

/** @param {{stage?: string, done?: number, total?: number, unit?: string}} load */
export function describeLoading({ stage, done, total, unit }) {
  const known = stage && has(`load.${stage}`);
  const details = [];
  if (total) details.push(t("status.of", { done: amount(done, unit), total: amount(total, unit) }));
  return { stage: known ? t(`load.${stage}`) : t("status.loading"), details, fraction: total ? done / total : null };
}

const amount = (count, unit) => (unit === "bytes" ? bytes(count) : number(count));

function prefill({ tokens_done: done, tokens_total: total, layer, layers }) {
  const details = [];
  if (total) details.push(t("status.prompt_tokens", { done: number(done ?? 0), total: number(total) }));
  if (layers) details.push(t("status.layer", { layer, layers }));
  const within = layers ? layer / layers : null;
  return { stage: t("status.prefill"), details, fraction: done && total ? done / total : within };
}

function decode({ tokens_done: done, layer, layers, elapsed_s: elapsed }) {
  const details = [];
  if (done !== undefined) details.push(t("status.token", { token: number(done + 1) }));
  const slow = elapsed / Math.max(1, done ?? 0) > SLOW_TOKEN;
  if (layers && slow) details.push(t("status.layer", { layer, layers }));
  return { stage: t("status.decode"), details, fraction: layers && slow ? layer / layers : null };
}

function work({ expert_hits: hits, expert_reads: reads, bytes_read: read }) {
  const details = [];
  if (hits + reads > 0) details.push(t("status.from_memory", { percent: percent(hits, reads) }));
  if (read) details.push(t("status.read", { amount: bytes(read) }));
  return details;
}

// Nearly all is not all: 599 of 600 reads as 99.8 %, never as 100 %.
function percent(hits, reads) {
  const share = (100 * hits) / (hits + reads);
  return number(Math.floor(share * 10) / 10, share > 99 ? 1 : 0);
}

/** One line about a reply that has ended: TTFT, speed, where its experts came from. Empty when nothing was measured. */
export function describeTimings(timings) {
  if (!timings) return [];
  const parts = [];
  if (timings.ttft_s !== undefined) parts.push(t("timing.ttft", { time: duration(timings.ttft_s) }));
  if (timings.tpot_s > 0) {
    parts.push(t("timing.tpot", { time: duration(timings.tpot_s) }));
    const speed = 1 / timings.tpot_s;
    parts.push(t("timing.speed", { speed: number(speed, speed < 1 ? 2 : speed < 20 ? 1 : 0) }));
  }
  if (timings.continued_from === "text") parts.push(t("timing.from_text"));
  return [...parts, ...work(timings)];
}

/** Why a reply ended early, in words; null when it simply came to its end. */
export function describeOutcome({ state, reason, detail }) {
  if (state === "complete") return reason && reason !== "stop" && has(`outcome.${reason}`) ? t(`outcome.${reason}`) : null;
  if (state === "failed") return plain(detail ?? "") || t("outcome.failed");
  if (state === "interrupted") return reason && has(`outcome.${reason}`) ? t(`outcome.${reason}`) : t("outcome.interrupted");
  return state === "cancelled" ? t("outcome.stopped_by_person") : null;
}
