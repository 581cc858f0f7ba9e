/**
 * What a model needs and what memory buys it, in words. The figures come from backend/forecast.py: predictions by the
 * measured speed of this disk and this memory, and next to them what replies here have really measured.
 */
import { bytes, number, t } from "pagoda/words.js";

/**
 * @param {{steps: {budget_bytes: number, share: number, tokens_per_s: number}[]}} forecast
 * @param {number} budget bytes
 * @returns {{share: number, speed: number} | null} null: the model does not run in so little
 */
export function bought({ steps }, budget) {
  if (budget < steps[0].budget_bytes) return null;
  const above = steps.findIndex((step) => step.budget_bytes > budget);
  if (above < 0) return { share: steps.at(-1).share, speed: steps.at(-1).tokens_per_s };
  const [low, high] = [steps[above - 1], steps[above]];
  const part = (budget - low.budget_bytes) / (high.budget_bytes - low.budget_bytes);
  const between = (name) => low[name] + part * (high[name] - low[name]);
  return { share: between("share"), speed: between("tokens_per_s") };
}

/** The budget that holds now: what the person chose, or as much as this machine can spare. */
export const budgetOf = (memory) => memory?.chosen_bytes ?? memory?.auto_bytes ?? 0;

export const speedOf = (speed) => number(speed, speed < 1 ? 2 : speed < 20 ? 1 : 0);

/** @returns {string} such as "experts: 61% of 17 GB fit · at most about 14 tok/s" */
export function describeForecast(forecast, budget) {
  const buys = bought(forecast, budget);
  if (buys === null) return t("forecast.too_little", { least: bytes(forecast.least_bytes) });
  return [fits(forecast, buys.share), t("forecast.at_most", { speed: speedOf(buys.speed) })].join(" · ");
}

function fits({ expert_bytes: experts }, share) {
  if (!experts) return t("forecast.no_experts");
  if (share >= 1) return t("forecast.all_fit", { size: bytes(experts) });
  return t("forecast.some_fit", { percent: number(Math.floor(share * 100)), size: bytes(experts) });
}

/** How fast its newest replies here were; empty where there were none. */
export function describeMeasured(speeds) {
  if (!speeds?.length) return "";
  const [low, high] = [Math.min(...speeds), Math.max(...speeds)].map(speedOf);
  return low === high ? t("forecast.measured", { speed: high }) : t("forecast.measured_range", { low, high });
}
