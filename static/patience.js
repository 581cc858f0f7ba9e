/**
 * How long a model may be silent before the page says so: per model, in this browser. It ends nothing by itself;
 * only the person, or a limit they set, ends a reply.
 */
import { reactive } from "vue";

const STORED = "pagoda.patience.";
const USUAL = 30;
const known = reactive({});

/** Seconds on offer; null is never. */
export const choices = [30, 120, 600, 3600, 4 * 3600, null];

/** @param {string | null} model @returns {number | null} */
export function patienceWith(model) {
  if (!(model in known)) {
    const stored = localStorage.getItem(STORED + model);
    known[model] = stored === "never" ? null : Number(stored) || USUAL;
  }
  return known[model];
}

/** @param {string | null} model @param {number | null} seconds */
export function setPatience(model, seconds) {
  known[model] = seconds;
  localStorage.setItem(STORED + model, seconds ?? "never");
}
